// Package resourcequota updates the status of ResourceQuotas: limits and usage.
//
// Admission adds to the usage before each write. This controller counts the objects when a quota changes, when objects are
// deleted, and after admitted writes that failed.
//
//	quota ─► namespace of a logical cluster ─► resources that its quotas count
//	              ├─ watch their metadata in the logical cluster as long as there is a
//	              │  quota: each resource once for all namespaces
//	              └─ used := number of objects
//	                   ├─ more than the status: write it immediately
//	                   └─ fewer: admitted writes may not be stored yet. Count again after a
//	                      second and subtract the difference to the usage at the first count
//
// A quota may limit a logical cluster. Then the objects of all namespaces are counted.
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Name is the name of the controller.
const Name = "resourcequota"

const (
	// admissionDelay is the maximum delay between the admission of a write and its storage.
	admissionDelay = time.Second
	// recountInterval is the interval for counting without observed changes.
	recountInterval = 5 * time.Minute
	// unservedInterval is this interval if a counted resource is not served, because it may be served later.
	unservedInterval = time.Minute
)

func limited(quota *corev1.ResourceQuota) namespace {
	return namespace{Cluster: logicalcluster.From(quota), Name: tenancy.LimitedBy(quota)}
}

// NewResourceQuotaController returns the controller. The informer contains the quotas of all logical clusters of the shard. Its keys
// are namespaces, or logical clusters.
func NewResourceQuotaController(local *client.Factory, quotas *client.Informer[*corev1.ResourceQuota]) *reconcile.Controller[namespace] {
	w := newWatches(local)
	r := &quotaReconciler{
		quotas: func(in namespace) []*corev1.ResourceQuota {
			stored := quotas.Lister().Cluster(in.Cluster).ListNamespace(tenancy.QuotasIn(in.Name), nil)
			return slices.DeleteFunc(stored, func(quota *corev1.ResourceQuota) bool { return limited(quota) != in })
		},
		count: w.count,
		commit: func(ctx context.Context, updated *corev1.ResourceQuota) error {
			in := kinds.ResourceQuotas.InNamespace(local.Cluster(logicalcluster.From(updated).Path()), updated.Namespace)
			_, err := in.UpdateStatus(ctx, updated, metav1.UpdateOptions{})
			return err
		},
		now: time.Now, seen: map[limit]excess{},
	}
	return reconcile.New(reconcile.Config[namespace]{
		Name: Name, Reconcile: r.reconcile,
		Sources: []reconcile.Source[namespace]{
			w.source, // must be first, because counting needs it
			reconcile.FromInformer(quotas, func(quota *corev1.ResourceQuota) []namespace {
				in := []namespace{{Cluster: logicalcluster.From(quota), Name: quota.Namespace}}
				if quota.Namespace == tenancy.QuotaNamespace { // its previous state may have limited the logical cluster
					in = append(in, namespace{Cluster: in[0].Cluster})
				}
				return in
			}),
		},
	})
}

type quotaReconciler struct {
	// quotas returns the quotas that limit a namespace or the logical cluster.
	quotas func(in namespace) []*corev1.ResourceQuota
	count  func(ctx context.Context, in namespace, resources []schema.GroupResource) counts
	commit func(ctx context.Context, updated *corev1.ResourceQuota) error
	now    func() time.Time

	mu   sync.Mutex
	seen map[limit]excess
}

// limit identifies a quota and the namespace that it limits.
type limit struct {
	in   namespace
	name string
}

// excess is the usage that exceeded a count, and the time of the count.
type excess struct {
	used usage
	at   time.Time
}

func (r *quotaReconciler) reconcile(ctx context.Context, in namespace) (reconcile.Result, error) {
	quotas := r.quotas(in)
	resources := countedBy(quotas)
	counts := r.count(ctx, in, resources)
	if err := ctx.Err(); err != nil {
		return reconcile.Result{}, err
	}
	r.prune(in, quotas)
	if len(quotas) == 0 {
		return reconcile.Result{}, nil
	}
	result := reconcile.Result{RequeueAfter: recountInterval}
	if len(counts.objects) < len(resources) {
		result.RequeueAfter = unservedInterval
	}
	var errs []error
	for resource, err := range counts.failed {
		errs = append(errs, fmt.Errorf("counting %s: %w", resource, err))
	}
	for _, quota := range quotas {
		now := countFor(quota, counts)
		again, err := r.publish(ctx, quota, now)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
		if again {
			result.RequeueAfter = admissionDelay
		}
	}
	return result, errors.Join(errs...)
}

// publish writes the status for a count and reports whether to count again soon.
func (r *quotaReconciler) publish(ctx context.Context, quota *corev1.ResourceQuota, now usage) (again bool, err error) {
	key := limit{in: limited(quota), name: quota.Name}
	r.mu.Lock()
	last, looked := r.seen[key]
	r.mu.Unlock()
	early := looked && r.now().Sub(last.at) < admissionDelay
	var before usage
	if looked && !early {
		before = last.used
	}
	updated, above := observe(quota, now, before)
	if updated != quota {
		if err := r.commit(ctx, updated); err != nil {
			return false, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(above) == 0:
		delete(r.seen, key)
	case !early:
		r.seen[key] = excess{used: above, at: r.now()}
	}
	return len(above) > 0, nil
}

func (r *quotaReconciler) prune(in namespace, quotas []*corev1.ResourceQuota) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.seen {
		if key.in == in && !slices.ContainsFunc(quotas, func(quota *corev1.ResourceQuota) bool { return quota.Name == key.name }) {
			delete(r.seen, key)
		}
	}
}

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

// observe returns the quota with the status for a count, and the usage of the entries that exceeds it. before is the
// usage at a time when all admitted writes have been stored since: if there are fewer objects, the difference is final.
// An entry that could not be counted keeps its usage; without one, admission denies writes for it.
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
