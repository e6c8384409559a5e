package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	workers = 4
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

// limiting returns the quotas that limit a namespace or the logical cluster.
func limiting(all *client.Informer[*corev1.ResourceQuota], in namespace) []*corev1.ResourceQuota {
	stored := all.Lister().Cluster(in.Cluster).ListNamespace(tenancy.QuotasIn(in.Name), nil)
	return slices.DeleteFunc(stored, func(quota *corev1.ResourceQuota) bool { return limited(quota) != in })
}

// Config configures the controller.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Quotas contains the quotas of all logical clusters of the shard.
	Quotas *client.Informer[*corev1.ResourceQuota]
}

// Controller updates the usage of quotas.
type Controller struct {
	queue   *reconcile.Controller[namespace]
	watches *watches
}

// NewResourceQuotaController returns the controller.
func NewResourceQuotaController(config Config) *Controller {
	c := &Controller{}
	var wake delayedQueue
	c.watches = newWatches(config.Local, wake.add)
	r := &quotaReconciler{
		quotas: func(in namespace) []*corev1.ResourceQuota { return limiting(config.Quotas, in) },
		count:  c.watches.count,
		commit: func(ctx context.Context, updated *corev1.ResourceQuota) error {
			in := kinds.ResourceQuotas.InNamespace(config.Local.Cluster(logicalcluster.From(updated).Path()), updated.Namespace)
			_, err := in.UpdateStatus(ctx, updated, metav1.UpdateOptions{})
			return err
		},
		now: time.Now, seen: map[limit]excess{},
	}
	c.queue = reconcile.New(reconcile.Config[namespace]{
		Name: Name, Reconcile: r.reconcile, Workers: workers,
		Sources: []reconcile.Source[namespace]{
			reconcile.FromInformer(config.Quotas, func(quota *corev1.ResourceQuota) []namespace {
				in := []namespace{{Cluster: logicalcluster.From(quota), Name: quota.Namespace}}
				if quota.Namespace == tenancy.QuotaNamespace { // its previous state may have limited the logical cluster
					in = append(in, namespace{Cluster: in[0].Cluster})
				}
				return in
			}),
			wake.source,
		},
	})
	return c
}

// Name returns the controller's name.
func (c *Controller) Name() string { return Name }

// Run counts until ctx is done, and returns after all of its goroutines have exited.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	c.watches.open(ctx)
	defer c.watches.close()
	defer cancel()
	return c.queue.Run(ctx)
}

// delayedQueue feeds a queue with namespaces that contain changed objects.
type delayedQueue struct {
	mu    sync.Mutex
	queue reconcile.Queue[namespace]
}

func (l *delayedQueue) source(_ context.Context, queue reconcile.Queue[namespace]) (func(), error) {
	l.set(queue)
	return func() { l.set(nil) }, nil
}

func (l *delayedQueue) set(queue reconcile.Queue[namespace]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = queue
}

func (l *delayedQueue) add(in namespace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue != nil {
		l.queue.AddAfter(in, batchDelay)
	}
}

type quotaReconciler struct {
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

// prune removes the state of deleted quotas.
func (r *quotaReconciler) prune(in namespace, quotas []*corev1.ResourceQuota) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.seen {
		if key.in == in && !slices.ContainsFunc(quotas, func(quota *corev1.ResourceQuota) bool { return quota.Name == key.name }) {
			delete(r.seen, key)
		}
	}
}
