package resourcequota

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const countPrefix = "count/"

// counted returns the resource whose objects a quota's entry counts; false for
// entries that count something that no logical cluster has.
func counted(name corev1.ResourceName) (schema.GroupResource, bool) {
	switch name {
	case corev1.ResourceConfigMaps, corev1.ResourceSecrets, corev1.ResourceQuotas:
		return corev1.Resource(string(name)), true
	default:
		text, ok := strings.CutPrefix(string(name), countPrefix)
		if !ok || text == "" {
			return schema.GroupResource{}, false
		}
		return schema.ParseGroupResource(text), true
	}
}

// countedBy returns the resources that quotas count, ordered.
func countedBy(quotas []*corev1.ResourceQuota) []schema.GroupResource {
	found := map[schema.GroupResource]bool{}
	for _, quota := range quotas {
		if scoped(quota) {
			continue
		}
		for name := range quota.Spec.Hard {
			if resource, ok := counted(name); ok {
				found[resource] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
}

// scoped reports whether the quota applies to some pods only, and so to nothing.
func scoped(quota *corev1.ResourceQuota) bool {
	return len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil
}

// usage is how much is used, as a quota's status has it.
type usage map[corev1.ResourceName]int64

// counts are how many objects there are of resources. Those that are not served are in neither map.
type counts struct {
	objects map[schema.GroupResource]int64
	// failed are the errors of resources that cannot be counted.
	failed map[schema.GroupResource]error
}

// countFor returns what the quota's entries count, without those that cannot be counted.
func countFor(quota *corev1.ResourceQuota, counts counts) usage {
	out := make(usage, len(quota.Spec.Hard))
	for name := range quota.Spec.Hard {
		resource, ok := counted(name)
		if !ok || scoped(quota) {
			out[name] = 0
		} else if counts.failed[resource] == nil {
			out[name] = counts.objects[resource]
		}
	}
	return out
}

// observe returns the quota with the status that follows from a count, and what
// is used by it of everything of which that is more than there is.
//
// before is what was used so long ago that all writes admitted until then are
// stored: if there are fewer than that, the difference is gone for good. What
// was admitted since may still be on its way, and stays counted.
//
// An entry that cannot be counted keeps what admission has counted so far. Without that it has a limit and nothing is said
// of its use, so that admission denies writes: it is the only one that is affected.
func observe(quota *corev1.ResourceQuota, now, before usage) (updated *corev1.ResourceQuota, above usage) {
	updated = quota.DeepCopy()
	updated.Status.Hard = quota.Spec.Hard.DeepCopy()
	updated.Status.Used = corev1.ResourceList{}
	above = usage{}
	for name, count := range now {
		quantity, known := quota.Status.Used[name]
		if used := quantity.Value(); known && used > count {
			if gone := before[name] - count; gone > 0 {
				used = max(count, used-gone)
			}
			if used > count {
				above[name] = used
			}
			count = used
		}
		updated.Status.Used[name] = *apiresource.NewQuantity(count, apiresource.DecimalSI)
	}
	for name := range quota.Spec.Hard {
		if _, known := now[name]; known {
			continue
		}
		if used, known := quota.Status.Used[name]; known {
			updated.Status.Used[name] = used
		}
	}
	if equality.Semantic.DeepEqual(updated.Status, quota.Status) {
		updated = quota
	}
	return updated, above
}
