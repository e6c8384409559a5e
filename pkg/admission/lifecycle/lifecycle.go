// Package lifecycle is the admission plugin that keeps objects out of
// namespaces that do not exist, or not for long any more, in each logical
// cluster by itself. It answers what kube-apiserver's NamespaceLifecycle does.
// New ones it keeps out of whole logical clusters, too, that are being emptied.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// distrust is how long the informer is not believed when it says that a
	// namespace which somebody has deleted is active.
	distrust = 30 * time.Second
	// deletions is how many deleted namespaces are remembered.
	deletions = 1000
)

var (
	errImmortal = errors.New("this namespace may not be deleted")
	errEmptied  = errors.New("unable to create new content in the logical cluster because it is being deleted")
)

// Config is what the plugin goes by.
type Config struct {
	// Clients reach the server, and Namespaces are those of all its logical clusters.
	Clients    *client.Factory
	Namespaces *client.Informer[*corev1.Namespace]
	// LogicalCluster returns a logical cluster, as far as it is known, or nil.
	LogicalCluster func(name logicalcluster.Name) *corev1alpha1.LogicalCluster
	// Unstored are resources that only ask and store nothing.
	Unstored []schema.GroupResource
}

// Plugin implements admission.MutationInterface: it runs before anything
// changes the object or is asked about it.
type Plugin struct {
	*admission.Handler

	Config
	ready   percluster.Ready
	deleted *utilcache.LRUExpireCache
}

var _ admission.MutationInterface = &Plugin{}

// New returns the plugin.
func New(c Config) *Plugin {
	return &Plugin{
		Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete, admission.Connect),
		Config:  c,
		ready:   percluster.Ready{c.Namespaces},
		deleted: utilcache.NewLRUExpireCache(deletions),
	}
}

// Admit implements admission.MutationInterface.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if err := p.admitCreate(ctx, a); err != nil {
		return err
	}
	if a.GetKind().GroupKind() == corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind() {
		return p.admitNamespace(ctx, a)
	}
	operation := a.GetOperation()
	if a.GetNamespace() == "" || operation == admission.Delete || operation == admission.Update || isReview(a) {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := p.ready.Wait(ctx, a); err != nil {
		return err
	}
	key := client.Key{Cluster: cluster, Name: a.GetNamespace()}
	if len(content.IsPathSegmentName(key.Name)) > 0 {
		return apierrors.NewNotFound(corev1.Resource("namespaces"), key.Name) // it cannot be asked for
	}
	namespace, err := p.Namespaces.Lister().Get(key)
	if err != nil || p.doubtful(key, namespace) {
		namespace, err = kinds.Namespaces.In(p.Clients.Cluster(cluster.Path())).Get(ctx, key.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return err
		case err != nil:
			return apierrors.NewInternalError(fmt.Errorf("looking up namespace %s: %w", key.Name, err))
		}
	}
	if operation == admission.Create && namespace.Status.Phase == corev1.NamespaceTerminating {
		return terminating(a)
	}
	return nil
}

// admitCreate lets nobody but the server create anything in a logical cluster that is being
// emptied: what comes as fast as it is deleted would keep it from its end, and what comes
// after the last look would stay behind.
func (p *Plugin) admitCreate(ctx context.Context, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" || percluster.IsServer(a.GetUserInfo()) || slices.Contains(p.Unstored, a.GetResource().GroupResource()) {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if lc := p.LogicalCluster(cluster); lc != nil && lc.Status.Phase == corev1alpha1.LogicalClusterPhaseDeleting {
		return admission.NewForbidden(a, errEmptied)
	}
	return nil
}

// admitNamespace protects the namespace that is always there, and remembers
// those that somebody deletes: from then on nothing may be created in them,
// whether the informer has seen it or not.
func (p *Plugin) admitNamespace(ctx context.Context, a admission.Attributes) error {
	if a.GetOperation() != admission.Delete {
		return nil
	}
	// The server itself empties logical clusters that are deleted.
	if a.GetName() == metav1.NamespaceDefault && !percluster.IsServer(a.GetUserInfo()) {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errImmortal)
	}
	if cluster, err := request.ClusterNameFrom(ctx); err == nil {
		p.deleted.Add(client.Key{Cluster: cluster, Name: a.GetName()}, nil, distrust)
	}
	return nil
}

// doubtful reports whether what the informer knows may be out of date in a way
// that matters: a namespace that was deleted a moment ago, or one that has been
// created anew since.
func (p *Plugin) doubtful(key client.Key, namespace *corev1.Namespace) bool {
	if namespace.Status.Phase == corev1.NamespaceTerminating {
		return true
	}
	_, deleted := p.deleted.Get(key)
	return deleted
}

func terminating(a admission.Attributes) error {
	err := admission.NewForbidden(a, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.GetNamespace()))
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", a.GetNamespace()),
			Field:   "metadata.namespace",
		})
	}
	return err
}

// isReview reports whether the request only asks about access: the answer must
// not tell whether the namespace exists.
func isReview(a admission.Attributes) bool {
	return a.GetResource().GroupResource() == authorizationv1.Resource("localsubjectaccessreviews")
}
