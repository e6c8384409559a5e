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

// counted returns the resource that an entry of a quota counts; false if no logical cluster has such objects.
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

// scoped reports whether the quota only applies to certain pods, and therefore has no effect.
func scoped(quota *corev1.ResourceQuota) bool {
	return len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil
}

type usage map[corev1.ResourceName]int64

// counts are the numbers of objects. Resources that are not served are in neither map.
type counts struct {
	objects map[schema.GroupResource]int64
	// failed contains errors of resources that could not be counted.
	failed map[schema.GroupResource]error
}

// countFor returns the counts of a quota's entries, without those that could not be counted.
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

// observe returns the quota with the status for a count, and the usage of all entries that exceeds the count.
//
// before is the usage at a time when all admitted writes have been stored since: if there are fewer objects, the difference
// is final. Writes that were admitted later may not be stored yet and stay included.
//
// An entry that could not be counted keeps its usage. Without any usage, admission denies writes for this entry, but not
// for others.
func observe(quota *corev1.ResourceQuota, now, before usage) (updated *corev1.ResourceQuota, above usage) {
	updated = quota.DeepCopy()
	updated.Status.Hard = quota.Spec.Hard.DeepCopy()
	updated.Status.Used = corev1.ResourceList{}
	above = usage{}
	for name, count := range now {
		quantity, known := quota.Status.Used[name]
		if used := quantity.Value(); known && used > count {
			if deleted := before[name] - count; deleted > 0 {
				used = max(count, used-deleted)
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
