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

// ClaimLabelPrefix is the prefix of labels that identify the permission claims on an object. Writes drop these
// labels, and reads add them.
//
//reference:metadata label claimed objects | shard
const ClaimLabelPrefix = "claimed.internal.apis.kcp.io/"

// ClaimLabel is a label that reads add. Its key has the ClaimLabelPrefix.
type ClaimLabel struct {
	Key, Value string
	// On selects the objects with the label.
	On claims.Selection
}

// ClaimLabels returns the labels that reads add to the objects of a resource in a logical cluster; usually none. It
// is called for each object and delays pending events. Therefore, it must be quick, must not block, and must not
// acquire a lock under which a claim set is changed. The slice must not be changed.
type ClaimLabels func(cluster logicalcluster.Name, resource schema.GroupResource, identity string) []ClaimLabel

// claimLabels are the labels of one resource, or nil if there are none.
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

// shown returns the object with its labels. The result is a copy that shares all other content, or obj itself if there
// are no labels.
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

// show adds labels to an object that was read, or to the items of a list.
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

// addLabels replaces the label map of an object, because others may share it.
func addLabels(obj runtime.Object, add map[string]string) {
	object, err := meta.Accessor(obj)
	if len(add) == 0 || err != nil {
		return
	}
	object.SetLabels(labels.Merge(object.GetLabels(), add))
}

// drop removes the labels from an object that is written.
func (c *claimLabels) drop(obj runtime.Object) {
	if object, err := meta.Accessor(obj); c != nil && err == nil {
		ReplaceClaimLabels(object, nil)
	}
}

// WithoutClaimLabels returns the labels without claim labels.
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

// ReplaceClaimLabels replaces the claim labels of an object with those in by.
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
		object.SetLabels(nil) // an empty map would be stored, and would differ from nil
	default:
		object.SetLabels(after)
	}
}

// selectBy lets a predicate match claim labels if it names some, and reports whether it does.
func (c *claimLabels) selectBy(pred *storage.SelectionPredicate) bool {
	if c == nil || pred.Label == nil {
		return false
	}
	requirements, _ := pred.Label.Requirements()
	if !slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return strings.HasPrefix(r.Key(), ClaimLabelPrefix) }) {
		return false
	}
	getAttrs := pred.GetAttrs
	pred.GetAttrs = func(obj runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := getAttrs(obj)
		add := c.of(obj)
		if err != nil || len(add) == 0 {
			return l, f, err
		}
		return labels.Merge(l, add), f, nil
	}
	return true
}
