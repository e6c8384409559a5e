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

// conversionCheck converts objects before they are written if the schema has a conversion function. An object
// that cannot be converted would break every list in the other version, including lists by identity of other
// logical clusters. It does not call webhooks. A nil check accepts everything.
type conversionCheck struct {
	convert definitions.Convert
	stored  string
	served  []string
}

func newConversionCheck(sch *definitions.Schema, stored schema.GroupVersion) *conversionCheck {
	if sch.Convert == nil {
		return nil
	}
	t := &conversionCheck{convert: sch.Convert, stored: stored.String()}
	for _, v := range sch.Spec().Versions {
		if gv := (schema.GroupVersion{Group: stored.Group, Version: v.Name}).String(); v.Served && gv != t.stored {
			t.served = append(t.served, gv)
		}
	}
	return t
}

// checkStored converts an object of a client to the stored version.
func (t *conversionCheck) checkStored(u *unstructured.Unstructured, gvk schema.GroupVersionKind) error {
	if t == nil || gvk.GroupVersion().String() == t.stored {
		return nil
	}
	return t.checkVersion(u, t.stored)
}

// checkServed converts an object to all served versions.
func (t *conversionCheck) checkServed(stored *unstructured.Unstructured) error {
	if t == nil {
		return nil
	}
	for _, version := range t.served {
		if err := t.checkVersion(stored, version); err != nil {
			return err
		}
	}
	return nil
}

// checkUpdate is checkServed for an update. An object that was invalid before may stay so, because finalizers
// must be removable.
func (t *conversionCheck) checkUpdate(before *packed.Object, after *unstructured.Unstructured) error {
	if err := t.checkServed(after); err != nil && t.checkServed(before.Unstructured()) == nil {
		return err
	}
	return nil
}

func (t *conversionCheck) checkVersion(u *unstructured.Unstructured, version string) error {
	if _, err := t.convert(u, version); err != nil {
		gvk := u.GroupVersionKind()
		return apierrors.NewInvalid(gvk.GroupKind(), u.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("apiVersion"), u.GetAPIVersion(), fmt.Sprintf("the object cannot be converted to %s: %v", version, err)),
		})
	}
	return nil
}
