package versions

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// Modify lets change edit an object of a schema in the logical cluster of ctx, in the
// version in which objects are stored, and returns it as it is stored then. Nothing else
// looks at the change. If others write the object at the same time, change is called
// again with what they have written; what its error is, Modify returns.
func (s *Stores) Modify(ctx context.Context, sch *definitions.Schema, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error) {
	// Makes the upstream handler's serving info, and with it the views, if need be.
	of, err := s.config.Instances(sch.CRD())
	if err != nil {
		return nil, err
	}
	stored, ok := of.(*customresource.REST)
	v, done := s.use(sch, sch.StoredVersion())
	defer done()
	if v == nil || !ok {
		return nil, fmt.Errorf("there is no storage of %s", sch.Resource)
	}
	key, err := stored.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	written := &unstructured.Unstructured{}
	err = v.GuaranteedUpdate(ctx, key, written, false, nil, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		u, ok := in.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("storage of custom resources holds a %T", in)
		}
		return u, change(u)
	}), nil)
	return written, err
}
