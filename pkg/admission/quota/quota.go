// Package quota is the admission plugin that enforces ResourceQuotas. It rejects writes that would exceed a
// quota, and adds others to the usage before they are stored, so that concurrent writes cannot exceed the
// quota together.
//
// One evaluator of upstream serves all logical clusters. Its namespaces are named `<logical cluster>
// <namespace>`. The name `<logical cluster>
// ` is used for quotas that limit a complete logical cluster. Writes to namespaces and logical clusters
// without a quota do not use the evaluator.
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

// workers is the number of namespaces that are processed concurrently.
const workers = 10

// Plugin implements admission.ValidationInterface. It must be the last plugin, so that rejected writes are
// not counted.
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

// New returns the plugin for quotas of all logical clusters.
func New(clients *client.Factory, quotas *client.Informer[*corev1.ResourceQuota]) *Plugin {
	return &Plugin{
		Handler:  admission.NewHandler(admission.Create, admission.Update),
		quotas:   quotas,
		ready:    percluster.Ready{quotas},
		limits:   followNamespaces(quotas),
		accessor: newAccessor(clients, quotas),
		stop:     make(chan struct{}),
	}
}

// Run allows updates of quotas until ctx ends.
func (p *Plugin) Run(ctx context.Context) {
	p.accessor.open(ctx)
	<-ctx.Done()
	close(p.stop)
}

// Validate implements admission.ValidationInterface. Quotas of the namespace are evaluated first, so that a write that
// they reject does not use the quota of the logical cluster, which other namespaces share.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := p.ready.Wait(ctx); err != nil {
		return err
	}
	if namespace := a.GetNamespace(); namespace != "" && !isNamespace(a) {
		if err := p.evaluate(a, cluster, namespace); err != nil {
			return err
		}
	}
	return p.evaluate(a, cluster, "")
}

// evaluate applies the quotas of a namespace, or those of the logical cluster if namespace is "".
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

// named replaces the namespace of a write by that of the evaluator. It hides the object, because objects are
// only counted and the evaluator would set the namespace of the object.
type named struct {
	admission.Attributes
	namespace string
}

func (n named) GetObject() runtime.Object { return &metav1.PartialObjectMetadata{} }

func (n named) GetNamespace() string { return n.namespace }

// namespaces counts the quotas of each namespace, and of logical clusters under the namespace "".
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
