// Package quota is the admission plugin that enforces ResourceQuotas: a write
// that would exceed one is denied, and one that does not is added to what is
// used before it is stored, so that no two writes get the last place.
//
// Upstream's evaluator does this for one cluster. One of it serves all logical
// clusters: its namespaces are named `<logical cluster>|<namespace>`. Namespaces
// without a quota never get there.
package quota

import (
	"context"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
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

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || a.GetSubresource() != "" || isNamespace(a) {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := p.ready.Wait(ctx, a); err != nil {
		return err
	}
	if !p.limits.has(cluster, a.GetNamespace()) {
		return nil
	}
	// The evaluator gives objects without a namespace the one of the request,
	// which it knows by another name.
	if obj, err := meta.Accessor(a.GetObject()); err == nil && obj.GetNamespace() == "" {
		obj.SetNamespace(a.GetNamespace())
	}
	p.start.Do(func() {
		p.evaluator = resourcequota.NewQuotaEvaluator(p.accessor, nil, registry{}, nil, nil, workers, p.stop)
	})
	return p.evaluator.Evaluate(named{Attributes: a, namespace: join(cluster, a.GetNamespace())})
}

func isNamespace(a admission.Attributes) bool {
	return a.GetKind().GroupKind() == corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind()
}

// named is a write to a namespace by the evaluator's name.
type named struct {
	admission.Attributes
	namespace string
}

// GetNamespace implements admission.Attributes.
func (n named) GetNamespace() string { return n.namespace }

// namespaces counts the quotas of each namespace that has any.
type namespaces struct {
	mu     sync.RWMutex
	quotas map[logicalcluster.Name]map[string]int
}

func followNamespaces(quotas *client.Informer[*corev1.ResourceQuota]) *namespaces {
	n := &namespaces{quotas: map[logicalcluster.Name]map[string]int{}}
	quotas.AddEventHandler(client.Handler[*corev1.ResourceQuota]{
		OnAdd:    func(q *corev1.ResourceQuota, _ bool) { n.add(logicalcluster.From(q), q.Namespace, 1) },
		OnDelete: func(q *corev1.ResourceQuota, _ bool) { n.add(logicalcluster.From(q), q.Namespace, -1) },
	})
	return n
}

func (n *namespaces) add(cluster logicalcluster.Name, namespace string, count int) {
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
