package versions

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
)

// Modify lets change edit an object of a schema in the logical cluster of ctx, in the
// version in which objects are stored, and returns it as it is stored then. Nothing else
// looks at the change. If others write the object at the same time, change is called
// again with what they have written; what its error is, Modify returns. The error is NotFound
// if there is no such object.
func (s *Stores) Modify(ctx context.Context, sch *definitions.Schema, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error) {
	v, key, done, err := s.place(ctx, sch, name)
	defer done()
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
	return written, storeerr.InterpretUpdateError(err, sch.Resource, name)
}

// Create stores a new object of a schema in the logical cluster of ctx as it is, status and
// finalizers included, and returns it as it is stored. It is given in the version in which
// objects are stored. Nothing else looks at it, and nobody is said to manage its fields.
// The error is AlreadyExists if there is an object of the name.
func (s *Stores) Create(ctx context.Context, sch *definitions.Schema, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	v, key, done, err := s.place(ctx, sch, object.GetName())
	defer done()
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(object)
	object.SetGeneration(1)
	written := &unstructured.Unstructured{}
	if err := v.Create(ctx, key, object, written, 0); err != nil {
		return nil, storeerr.InterpretCreateError(err, sch.Resource, object.GetName())
	}
	return written, nil
}

// Each calls visit for each object of a schema in the logical cluster of ctx, as it is stored.
func (s *Stores) Each(ctx context.Context, sch *definitions.Schema, visit func(*packed.Object)) error {
	v, key, done, err := s.place(ctx, sch, "")
	defer done()
	if err != nil {
		return err
	}
	var stored packed.List
	if err := v.raw.GetList(ctx, key, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &stored); err != nil {
		return storeerr.InterpretListError(err, sch.Resource)
	}
	for i := range stored.Items {
		visit(&stored.Items[i])
	}
	return nil
}

// place returns the view in which objects of a schema are as they are stored, which is kept
// until done is called, and the key of one of them, or the prefix of all without a name.
func (s *Stores) place(ctx context.Context, sch *definitions.Schema, name string) (v *view, key string, done func(), err error) {
	// Makes the upstream handler's serving info, and with it the views, if need be.
	of, err := s.config.Instances(sch.CRD())
	if err != nil {
		return nil, "", func() {}, err
	}
	stored, ok := of.(*customresource.REST)
	v, done = s.use(sch, sch.StoredVersion())
	if v == nil || !ok {
		return nil, "", done, fmt.Errorf("there is no storage of %s", sch.Resource)
	}
	if name == "" {
		return v, stored.KeyRootFunc(ctx), done, nil
	}
	key, err = stored.KeyFunc(ctx, name)
	return v, key, done, err
}
