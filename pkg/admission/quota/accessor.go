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
	// recently is the number of quotas that are remembered as last written, until the informer sees them.
	recently = 1000
	// updateTimeout limits an update of a quota. The write that causes it waits for ten seconds.
	updateTimeout = 5 * time.Second
)

var errStopped = errors.New("quotas cannot be updated: the server is not running")

// join returns the namespace for the evaluator, and split reverses it. Neither name can contain the
// separator.
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

// GetQuotas implements resourcequota.QuotaAccessor. The namespace of the returned quotas is that of the
// evaluator.
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

// latest returns the quota as last written here if that is newer.
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

// version returns the resourceVersion as a number. The versions of a resource are ordered.
func version(quota *corev1.ResourceQuota) uint64 {
	number, err := strconv.ParseUint(quota.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return number
}

// UpdateQuotaStatus implements resourcequota.QuotaAccessor. After a conflict it remembers the newest object,
// so that the evaluator retries with it.
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

func (a *accessor) remember(quota *corev1.ResourceQuota) { a.written.Add(client.KeyOf(quota), quota) }

// registry counts objects of any resource. It has no entries, because users define resources.
type registry struct{}

var _ quotav1.Registry = registry{}

func (registry) Get(resource schema.GroupResource) quotav1.Evaluator {
	return generic.NewObjectCountEvaluator(resource, nil, alias(resource))
}

func (registry) Add(quotav1.Evaluator) {}

func (registry) Remove(quotav1.Evaluator) {}

func (registry) List() []quotav1.Evaluator { return nil }

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
