package versions

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
)

// tries convert an object before it is written, where the schema has a function for it:
// one that cannot be converted would break every list in the other version, also those of
// others by identity. A webhook is not called for that. Nil tries nothing.
type tries struct {
	convert definitions.Convert
	stored  string
	served  []string
}

func newTries(sch *definitions.Schema, stored schema.GroupVersion) *tries {
	if sch.Convert == nil {
		return nil
	}
	t := &tries{convert: sch.Convert, stored: stored.String()}
	for _, v := range sch.Spec().Versions {
		if gv := (schema.GroupVersion{Group: stored.Group, Version: v.Name}).String(); v.Served && gv != t.stored {
			t.served = append(t.served, gv)
		}
	}
	return t
}

// writes converts an object of a client to the version that is stored.
func (t *tries) writes(u *unstructured.Unstructured, gvk schema.GroupVersionKind) error {
	if t == nil || gvk.GroupVersion().String() == t.stored {
		return nil
	}
	return t.to(u, t.stored)
}

// reads converts an object that is about to be stored to all versions that are served.
func (t *tries) reads(stored *unstructured.Unstructured) error {
	if t == nil {
		return nil
	}
	for _, version := range t.served {
		if err := t.to(stored, version); err != nil {
			return err
		}
	}
	return nil
}

// still is reads for a change. One that could not be read before may stay so: its
// finalizers have to come off.
func (t *tries) still(before *packed.Object, after *unstructured.Unstructured) error {
	if err := t.reads(after); err != nil && t.reads(before.Unstructured()) == nil {
		return err
	}
	return nil
}

func (t *tries) to(u *unstructured.Unstructured, version string) error {
	if _, err := t.convert(u, version); err != nil {
		gvk := u.GroupVersionKind()
		return apierrors.NewInvalid(gvk.GroupKind(), u.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("apiVersion"), u.GetAPIVersion(), fmt.Sprintf("the object cannot be converted to %s: %v", version, err)),
		})
	}
	return nil
}
