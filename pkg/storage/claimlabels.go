package storage

import (
	"maps"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// ClaimLabelPrefix starts the labels that say who claims an object. They are not stored:
// writes drop them, and reads show those that ClaimLabels tells.
const ClaimLabelPrefix = "claimed.internal.apis.kcp.io/"

// ClaimLabel is a label that reads show, whose key has the ClaimLabelPrefix.
type ClaimLabel struct {
	Key, Value string
	// On are the objects that show it.
	On claims.Selection
}

// ClaimLabels returns the labels that reads show on the objects of a resource that lie in a
// logical cluster and have the identity, which may be empty; mostly none. It is asked about
// each object that is shown, concurrently and while events wait, so it must be quick and
// must not block: it takes no lock under which a claim set is changed. Nobody changes what
// it returns, nor may it.
type ClaimLabels func(cluster logicalcluster.Name, resource schema.GroupResource, identity string) []ClaimLabel

// claimLabels are the labels of one resource; nil where there are none.
type claimLabels struct {
	labels   ClaimLabels
	resource schema.GroupResource
}

func (c *claimLabels) of(obj runtime.Object) map[string]string {
	if c == nil {
		return nil
	}
	t, ok := tenantOf(obj, false)
	if !ok {
		return nil
	}
	var shown map[string]string
	all := c.labels(t.cluster, c.resource, t.identity)
	for i := range all {
		if !all[i].On.Matches(obj) {
			continue
		}
		if shown == nil {
			shown = make(map[string]string, len(all))
		}
		shown[all[i].Key] = all[i].Value
	}
	return shown
}

// shown returns an object as it is shown: itself, or a copy that shares all but its labels.
func (c *claimLabels) shown(obj runtime.Object) runtime.Object {
	add := c.of(obj)
	if len(add) == 0 {
		return obj
	}
	if cacheable, ok := obj.(runtime.CacheableObject); ok {
		obj = cacheable.GetObject()
	}
	obj = hub.Shallow(obj)
	addLabels(obj, add)
	return obj
}

// show has an object that was read, or the items of a list, show their labels. They may
// share memory with the watch cache.
func (c *claimLabels) show(read runtime.Object) error {
	switch {
	case c == nil:
		return nil
	case meta.IsListType(read):
		return meta.EachListItem(read, func(obj runtime.Object) error {
			addLabels(obj, c.of(obj))
			return nil
		})
	default:
		addLabels(read, c.of(read))
		return nil
	}
}

// addLabels gives an object labels of its own. All else that it shares stays as it is.
func addLabels(obj runtime.Object, add map[string]string) {
	object, err := meta.Accessor(obj)
	if len(add) == 0 || err != nil {
		return
	}
	all := object.GetLabels()
	merged := make(map[string]string, len(all)+len(add))
	maps.Copy(merged, all)
	maps.Copy(merged, add)
	object.SetLabels(merged)
}

// drop takes the labels out of an object that is written.
func (c *claimLabels) drop(obj runtime.Object) {
	if object, err := meta.Accessor(obj); c != nil && err == nil {
		ReplaceClaimLabels(object, nil)
	}
}

// WithoutClaimLabels returns labels without those of claims.
func WithoutClaimLabels(all map[string]string) map[string]string {
	isClaim := func(key, _ string) bool { return strings.HasPrefix(key, ClaimLabelPrefix) }
	for key, value := range all {
		if isClaim(key, value) {
			kept := maps.Clone(all)
			maps.DeleteFunc(kept, isClaim)
			return kept
		}
	}
	return all
}

// ReplaceClaimLabels gives an object those of the labels that are of claims, in place of its own.
func ReplaceClaimLabels(object metav1.Object, by map[string]string) {
	before := object.GetLabels()
	after := WithoutClaimLabels(before)
	for key, value := range by {
		if strings.HasPrefix(key, ClaimLabelPrefix) {
			after = labels.Merge(after, labels.Set{key: value})
		}
	}
	switch {
	case maps.Equal(before, after):
	case len(after) == 0:
		object.SetLabels(nil) // an empty map would be stored, and differ from none
	default:
		object.SetLabels(after)
	}
}

// selectBy has a predicate that names such labels see them. It reports whether it does.
func (c *claimLabels) selectBy(pred *storage.SelectionPredicate) bool {
	if c == nil || !namesClaims(pred.Label) {
		return false
	}
	getAttrs := pred.GetAttrs
	pred.GetAttrs = func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := getAttrs(obj)
		add := c.of(obj)
		if err != nil || len(add) == 0 {
			return l, f, err
		}
		merged := make(labels.Set, len(l)+len(add))
		maps.Copy(merged, l)
		maps.Copy(merged, add)
		return merged, f, nil
	}
	return true
}

func namesClaims(selector labels.Selector) bool {
	if selector == nil {
		return false
	}
	requirements, _ := selector.Requirements()
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return strings.HasPrefix(r.Key(), ClaimLabelPrefix) })
}
