package limits

import (
	"fmt"
	"strings"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

// kind bounds objects of one kind that every shard and the cache server keep in
// memory, so that the limit of a logical cluster is no bound of what they cost.
type kind struct {
	// bytes are how large an object may be, and entries how many a list of it
	// may have, at the path list.
	bytes, entries int
	list           []string
}

var kinds = map[schema.GroupResource]kind{
	tenancyv1alpha1.Resource("workspacetypes"): {bytes: 64 << 10, entries: 32, list: []string{"spec", "extend", "with"}},
}

// validKind refuses what is too large for its kind, and was not before.
func validKind(a admission.Attributes) error {
	k, ok := kinds[a.GetResource().GroupResource()]
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	if n := size(a.GetObject()); n > k.bytes && (a.GetOldObject() == nil || n > size(a.GetOldObject())) {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q has %d bytes and may have %d", a.GetResource().GroupResource(), a.GetName(), n, k.bytes))
	}
	if n := entries(a.GetObject(), k.list); n > k.entries && n > entries(a.GetOldObject(), k.list) {
		return admission.NewForbidden(a, fmt.Errorf("%s has %d entries and may have %d", strings.Join(k.list, "."), n, k.entries))
	}
	return nil
}

// entries returns how long the list at the path is.
func entries(obj runtime.Object, path []string) int {
	custom, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return 0
	}
	list, _, _ := unstructured.NestedSlice(custom.Object, path...)
	return len(list)
}
