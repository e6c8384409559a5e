package versions

import (
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	multitenant "github.com/shardplane/shardplane/pkg/storage"
)

// Hold opens the store of the resource whose keys have a prefix, such as
// "/example.com/widgets/", whether or not anything serves it now, and keeps it until release
// is called: for who has to know of objects that nobody has asked for.
func (s *Stores) Hold(prefix string) (release func(), err error) {
	group, name, ok := strings.Cut(strings.Trim(prefix, "/"), "/")
	if !ok {
		return nil, fmt.Errorf("%q is no prefix of the keys of a resource", prefix)
	}
	name, custom := strings.CutSuffix(name, customSuffix)
	name, apart := strings.CutSuffix(name, apartSuffix)
	resource := schema.GroupResource{Group: group, Resource: name}
	if custom {
		resource.Group = ""
	}
	options, err := s.getter.GetRESTOptions(resource, nil)
	if err != nil {
		return nil, err
	}
	key := resource
	switch {
	case custom:
		options.ResourcePrefix += customSuffix
	case apart:
		options.ResourcePrefix += apartSuffix
		key.Resource += apartSuffix
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := s.openLocked(key, resource, options, options.ResourcePrefix)
	if err != nil {
		return nil, err
	}
	raw.users++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		destroy := s.leaveLocked(raw)
		s.mu.Unlock()
		destroy()
	}), nil
}

// PrefixOf returns the prefix of the keys of the objects of a schema, with slashes around it.
func (s *Stores) PrefixOf(sch *definitions.Schema) string {
	return multitenant.ResourcePrefix(storedResource(sch)) + s.suffix(sch) + "/"
}
