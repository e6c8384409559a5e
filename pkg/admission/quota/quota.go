// Package quota is the admission plugin that enforces ResourceQuotas. It rejects writes that would exceed a quota.
// Other writes are added to the usage before they are stored, so that concurrent writes together cannot exceed the
// quota.
//
// One evaluator of upstream serves all logical clusters. Its namespaces are named `<logical cluster>|<namespace>`,
// and `<logical cluster>|` for quotas that limit a complete logical cluster. Writes to namespaces and logical
// clusters without a quota do not use the evaluator.
package quota

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// workers is the number of namespaces that are processed concurrently.
const workers = 10

// Plugin implements admission.ValidationInterface. It must be the last plugin, so that rejected writes are not counted.
type Plugin struct {
	*admission.Handler

	ready percluster.Ready

	accessor  *accessor
	evaluator func() resourcequota.Evaluator
}

var _ admission.ValidationInterface = &Plugin{}

// NewQuota returns the plugin for quotas of all logical clusters.
func NewQuota(clients *client.Factory, quotas *client.Informer[*corev1.ResourceQuota]) *Plugin {
	a := &accessor{clients: clients, quotas: quotas, written: lru.New(recently), stop: make(chan struct{})}
	return &Plugin{
		Handler:  admission.NewHandler(admission.Create, admission.Update),
		ready:    percluster.Ready{quotas},
		accessor: a,
		evaluator: sync.OnceValue(func() resourcequota.Evaluator {
			return resourcequota.NewQuotaEvaluator(a, nil, registry{}, nil, nil, workers, a.stop)
		}),
	}
}

// Run ends updates of quotas when ctx ends.
func (p *Plugin) Run(ctx context.Context) {
	<-ctx.Done()
	close(p.accessor.stop)
}

// Validate implements admission.ValidationInterface. Quotas of the namespace are evaluated first. If they reject a
// write, it does not use the quota of the logical cluster, which other namespaces share.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	cluster, _ := request.ClusterNameFrom(ctx)
	if err := p.ready.Wait(ctx); err != nil {
		return err
	}
	if namespace := a.GetNamespace(); namespace != "" && a.GetKind().GroupKind() != corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind() {
		if err := p.evaluate(a, cluster, namespace); err != nil {
			return err
		}
	}
	return p.evaluate(a, cluster, "")
}

// evaluate applies the quotas of a namespace, or those of the logical cluster if namespace is "".
func (p *Plugin) evaluate(a admission.Attributes, cluster logicalcluster.Name, namespace string) error {
	if len(p.accessor.limiting(cluster, namespace)) == 0 {
		return nil
	}
	return p.evaluator().Evaluate(named{Attributes: a, namespace: join(cluster, namespace)})
}

// named replaces the namespace of a write by the namespace name in the evaluator. It hides the object,
// because objects are only counted and the evaluator would set the namespace of the object.
type named struct {
	admission.Attributes
	namespace string
}

func (n named) GetObject() runtime.Object { return &metav1.PartialObjectMetadata{} }

func (n named) GetNamespace() string { return n.namespace }

const (
	// recently is the number of quotas that are remembered as last written, until the informer sees them.
	recently = 1000
	// updateTimeout limits an update of a quota. The write that causes it waits for ten seconds.
	updateTimeout = 5 * time.Second
)

// join returns the namespace for the evaluator. Neither name can contain the separator.
func join(cluster logicalcluster.Name, namespace string) string {
	return cluster.String() + "|" + namespace
}

func split(namespace string) (cluster logicalcluster.Name, bare string) {
	c, bare, _ := strings.Cut(namespace, "|")
	return logicalcluster.Name(c), bare
}

type accessor struct {
	clients *client.Factory
	quotas  *client.Informer[*corev1.ResourceQuota]
	written *lru.Cache
	// stop is closed when the server stops, because the evaluator passes no context.
	stop chan struct{}
}

// GetQuotas implements resourcequota.QuotaAccessor. The quotas have the namespace of the evaluator.
func (a *accessor) GetQuotas(namespace string) ([]corev1.ResourceQuota, error) {
	found := a.limiting(split(namespace))
	out := make([]corev1.ResourceQuota, 0, len(found))
	for _, quota := range found {
		quota = quota.DeepCopy()
		quota.Namespace = namespace
		out = append(out, *quota)
	}
	return out, nil
}

// limiting returns the quotas of a namespace, or those of the logical cluster if namespace is "".
func (a *accessor) limiting(cluster logicalcluster.Name, namespace string) (found []*corev1.ResourceQuota) {
	for _, quota := range a.quotas.Lister().Cluster(cluster).ListNamespace(tenancy.QuotasIn(namespace), nil) {
		if quota = a.latest(quota); tenancy.LimitedBy(quota) == namespace {
			found = append(found, quota)
		}
	}
	return found
}

// latest returns the quota as last written here if that is newer.
func (a *accessor) latest(quota *corev1.ResourceQuota) *corev1.ResourceQuota {
	key := client.KeyOf(quota)
	found, ok := a.written.Get(key)
	if !ok {
		return quota
	}
	written := found.(*corev1.ResourceQuota)
	order, err := resourceversion.CompareResourceVersion(written.ResourceVersion, quota.ResourceVersion)
	if written.UID == quota.UID && err == nil && order > 0 {
		return written
	}
	a.written.Remove(key)
	return quota
}

// UpdateQuotaStatus remembers the newest object after a conflict, so that the evaluator retries with it.
func (a *accessor) UpdateQuotaStatus(quota *corev1.ResourceQuota) error {
	ctx, cancel := context.WithTimeout(wait.ContextForChannel(a.stop), updateTimeout)
	defer cancel()
	cluster, bare := split(quota.Namespace)
	namespace := tenancy.QuotasIn(bare)
	quotas := kinds.ResourceQuotas.InNamespace(a.clients.Cluster(cluster.Path()), namespace)
	quota = quota.DeepCopy()
	quota.Namespace = namespace
	updated, err := quotas.UpdateStatus(ctx, quota, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		if newest, getErr := quotas.Get(ctx, quota.Name, metav1.GetOptions{}); getErr == nil {
			a.remember(newest)
		}
		return err
	}
	if err != nil {
		return fmt.Errorf("counting the object for quota %s: %w", quota.Name, err)
	}
	a.remember(updated)
	return nil
}

func (a *accessor) remember(quota *corev1.ResourceQuota) { a.written.Add(client.KeyOf(quota), quota) }

// registry counts objects of any resource. The evaluator calls no other method.
type registry struct{ quotav1.Registry }

func (registry) Get(resource schema.GroupResource) quotav1.Evaluator {
	return generic.NewObjectCountEvaluator(resource, nil, alias(resource))
}

// alias returns the short name of a resource in quotas.
func alias(resource schema.GroupResource) corev1.ResourceName {
	switch resource {
	case corev1.Resource("configmaps"):
		return corev1.ResourceConfigMaps
	case corev1.Resource("secrets"):
		return corev1.ResourceSecrets
	case corev1.Resource("resourcequotas"):
		return corev1.ResourceQuotas
	default:
		return ""
	}
}
