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
	// bytes are how large an object may be.
	bytes int
	lists []list
}

// list is a list of an object, and how many entries it may have.
type list struct {
	path    []string
	entries int
}

var kinds = map[schema.GroupResource]kind{
	tenancyv1alpha1.Resource("workspacetypes"): {bytes: 64 << 10, lists: []list{
		{[]string{"spec", "extend", "with"}, 32}, {[]string{"spec", "authenticationConfigurations"}, 10},
		{[]string{"spec", "limitAllowedChildren", "types"}, 64}, {[]string{"spec", "limitAllowedParents", "types"}, 64},
	}},
	tenancyv1alpha1.Resource("workspaceauthenticationconfigurations"): {bytes: 64 << 10, lists: []list{{[]string{"spec", "jwt"}, 10}}},
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
	for _, l := range k.lists {
		if n := entries(a.GetObject(), l.path); n > l.entries && n > entries(a.GetOldObject(), l.path) {
			return admission.NewForbidden(a, fmt.Errorf("%s has %d entries and may have %d", strings.Join(l.path, "."), n, l.entries))
		}
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
