package versions

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
	tenantstorage "github.com/shardplane/shardplane/pkg/storage"
)

// shownBy returns the attributes by which what is shown of stored objects is selected.
func shownBy(p *definitions.Projection) *tenantstorage.Attributes {
	return &tenantstorage.Attributes{Get: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, set, err := attributesOf(obj)
		if err != nil {
			return nil, nil, err
		}
		stored, _ := obj.(*packed.Object) // or it were an error
		set["metadata.name"] = p.ShownName(stored.Unstructured())
		return l, set, nil
	}}
}

// storedKey returns the key of the object that a request sees under a key.
func (v *view) storedKey(ctx context.Context, key string) (string, error) {
	if v.projection == nil {
		return key, nil
	}
	at := strings.LastIndexByte(key, '/') + 1
	name, err := v.projection.StoredName(ctx, key[at:])
	if err != nil {
		return "", err
	}
	if name == "" {
		return "", storage.NewKeyNotFoundError(key, 0)
	}
	return key[:at] + name, nil
}

// collected returns the key and options of a list or watch as the shared store is to be
// asked: which object is shown under one name may change.
func (v *view) collected(key string, opts storage.ListOptions) (string, storage.ListOptions) {
	if v.projection != nil && !opts.Recursive {
		key, opts.Recursive = key[:strings.LastIndexByte(key, '/')+1], true
	}
	return key, opts
}
