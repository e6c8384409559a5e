package quota

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// recently is how many quotas are remembered as they were last written,
	// which the informer may not have seen yet.
	recently = 1000
	// updateTimeout bounds one update of a quota; the write that causes it
	// waits for ten seconds.
	updateTimeout = 5 * time.Second
)

var errStopped = errors.New("quotas cannot be updated: the server does not run, or not any more")

// join names a namespace of a logical cluster for the evaluator; split undoes
// it. Neither name can hold the separator.
func join(cluster logicalcluster.Name, namespace string) string {
	return cluster.String() + "|" + namespace
}

func split(namespace string) (cluster logicalcluster.Name, bare string) {
	c, bare, _ := strings.Cut(namespace, "|")
	return logicalcluster.Name(c), bare
}

// accessor reads and writes quotas for the evaluator.
type accessor struct {
	clients *client.Factory
	quotas  *client.Informer[*corev1.ResourceQuota]
	written *lru.Cache

	mu  sync.Mutex
	ctx context.Context //nolint:containedctx // the life of the server, because the evaluator passes no context
}

var _ resourcequota.QuotaAccessor = &accessor{}

func newAccessor(clients *client.Factory, quotas *client.Informer[*corev1.ResourceQuota]) *accessor {
	return &accessor{clients: clients, quotas: quotas, written: lru.New(recently)}
}

func (a *accessor) open(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ctx = ctx
}

// GetQuotas implements resourcequota.QuotaAccessor. The quotas carry the
// namespace by the evaluator's name.
func (a *accessor) GetQuotas(namespace string) ([]corev1.ResourceQuota, error) {
	cluster, bare := split(namespace)
	found := a.quotas.Lister().Cluster(cluster).ListNamespace(tenancy.QuotasIn(bare), nil)
	out := make([]corev1.ResourceQuota, 0, len(found))
	for _, quota := range found {
		if quota = a.latest(quota); tenancy.LimitedBy(quota) != bare {
			continue
		}
		quota = quota.DeepCopy()
		quota.Namespace = namespace
		out = append(out, *quota)
	}
	return out, nil
}

// latest returns the quota as it was last written here, if that is newer.
func (a *accessor) latest(quota *corev1.ResourceQuota) *corev1.ResourceQuota {
	key := client.KeyOf(quota)
	found, ok := a.written.Get(key)
	if !ok {
		return quota
	}
	written := found.(*corev1.ResourceQuota)
	if written.UID == quota.UID && version(written) > version(quota) {
		return written
	}
	a.written.Remove(key)
	return quota
}

// version is the resourceVersion as a number: of one resource, they are ordered.
func version(quota *corev1.ResourceQuota) uint64 {
	number, err := strconv.ParseUint(quota.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return number
}

// UpdateQuotaStatus implements resourcequota.QuotaAccessor. When somebody else
// was quicker, it learns the newest state, so that the evaluator tries again
// with that.
func (a *accessor) UpdateQuotaStatus(quota *corev1.ResourceQuota) error {
	a.mu.Lock()
	ctx := a.ctx
	a.mu.Unlock()
	if ctx == nil {
		return errStopped
	}
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
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

func (a *accessor) remember(quota *corev1.ResourceQuota) {
	a.written.Add(client.KeyOf(quota), quota)
}

// registry says how writes of a resource are counted: by objects, all of them.
// It holds nothing, because users decide which resources there are.
type registry struct{}

var _ quotav1.Registry = registry{}

// Get implements quotav1.Registry.
func (registry) Get(resource schema.GroupResource) quotav1.Evaluator {
	return generic.NewObjectCountEvaluator(resource, nil, alias(resource))
}

// Add implements quotav1.Registry.
func (registry) Add(quotav1.Evaluator) {}

// Remove implements quotav1.Registry.
func (registry) Remove(quotav1.Evaluator) {}

// List implements quotav1.Registry.
func (registry) List() []quotav1.Evaluator { return nil }

// alias returns the short name by which quotas may count a resource.
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
