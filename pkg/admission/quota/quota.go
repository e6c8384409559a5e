// Package quota is the admission plugin that enforces ResourceQuotas: a write
// that would exceed one is denied, and one that does not is added to what is
// used before it is stored, so that no two writes get the last place.
//
// Upstream's evaluator does this for one cluster. One of it serves all logical
// clusters: its namespaces are named `<logical cluster>|<namespace>`, and
// `<logical cluster>|` is all of a logical cluster, for quotas that limit it as a
// whole. Namespaces and logical clusters without a quota never get there.
package quota

import (
	"context"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// workers is how many namespaces are worked on at the same time.
const workers = 10

// Plugin implements admission.ValidationInterface. It must be the last one, so
// that nothing is counted that another one denies.
type Plugin struct {
	*admission.Handler

	quotas *client.Informer[*corev1.ResourceQuota]
	ready  percluster.Ready
	limits *namespaces

	start     sync.Once
	accessor  *accessor
	evaluator resourcequota.Evaluator
	stop      chan struct{}
}

var _ admission.ValidationInterface = &Plugin{}

// New returns the plugin. quotas are those of all logical clusters of the
// server that clients reaches.
func New(clients *client.Factory, quotas *client.Informer[*corev1.ResourceQuota]) *Plugin {
	p := &Plugin{
		Handler:  admission.NewHandler(admission.Create, admission.Update),
		quotas:   quotas,
		ready:    percluster.Ready{quotas},
		limits:   followNamespaces(quotas),
		accessor: newAccessor(clients, quotas),
		stop:     make(chan struct{}),
	}
	return p
}

// Run lets quotas be updated until ctx ends.
func (p *Plugin) Run(ctx context.Context) error {
	p.accessor.open(ctx)
	<-ctx.Done()
	close(p.stop)
	return nil
}

// Validate implements admission.ValidationInterface. What limits the namespace is asked
// first: who is refused there takes no place of the logical cluster, whose quotas limit
// all other namespaces too.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := p.ready.Wait(ctx, a); err != nil {
		return err
	}
	if namespace := a.GetNamespace(); namespace != "" && !isNamespace(a) {
		if err := p.evaluate(a, cluster, namespace); err != nil {
			return err
		}
	}
	return p.evaluate(a, cluster, "")
}

// evaluate asks the quotas of a namespace, or those of the whole logical cluster.
func (p *Plugin) evaluate(a admission.Attributes, cluster logicalcluster.Name, namespace string) error {
	if !p.limits.has(cluster, namespace) {
		return nil
	}
	p.start.Do(func() {
		p.evaluator = resourcequota.NewQuotaEvaluator(p.accessor, nil, registry{}, nil, nil, workers, p.stop)
	})
	return p.evaluator.Evaluate(named{Attributes: a, namespace: join(cluster, namespace)})
}

func isNamespace(a admission.Attributes) bool {
	return a.GetKind().GroupKind() == corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind()
}

// named is a write to a namespace by the evaluator's name. All objects count alike, so
// that the evaluator sees none: it would give the object its name of the namespace.
type named struct {
	admission.Attributes
	namespace string
}

// GetObject implements admission.Attributes.
func (n named) GetObject() runtime.Object { return &metav1.PartialObjectMetadata{} }

// GetNamespace implements admission.Attributes.
func (n named) GetNamespace() string { return n.namespace }

// namespaces counts the quotas of each namespace that has any, and of whole logical
// clusters as those of the namespace "".
type namespaces struct {
	mu     sync.RWMutex
	quotas map[logicalcluster.Name]map[string]int
}

func followNamespaces(quotas *client.Informer[*corev1.ResourceQuota]) *namespaces {
	n := &namespaces{quotas: map[logicalcluster.Name]map[string]int{}}
	quotas.AddEventHandler(client.Handler[*corev1.ResourceQuota]{
		OnAdd: func(q *corev1.ResourceQuota, _ bool) { n.add(q, 1) },
		OnUpdate: func(old, q *corev1.ResourceQuota) {
			n.add(q, 1)
			n.add(old, -1)
		},
		OnDelete: func(q *corev1.ResourceQuota, _ bool) { n.add(q, -1) },
	})
	return n
}

func (n *namespaces) add(quota *corev1.ResourceQuota, count int) {
	cluster, namespace := logicalcluster.From(quota), tenancy.LimitedBy(quota)
	n.mu.Lock()
	defer n.mu.Unlock()
	quotas := n.quotas[cluster]
	if quotas == nil {
		quotas = map[string]int{}
		n.quotas[cluster] = quotas
	}
	if quotas[namespace] += count; quotas[namespace] <= 0 {
		delete(quotas, namespace)
	}
	if len(quotas) == 0 {
		delete(n.quotas, cluster)
	}
}

func (n *namespaces) has(cluster logicalcluster.Name, namespace string) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.quotas[cluster][namespace] > 0
}
