// Package lifecycle is the admission plugin that rejects objects in namespaces that do not exist or are being deleted,
// like kube-apiserver's NamespaceLifecycle. It also rejects new objects in logical clusters that are being deleted, and
// requests without a logical cluster, so that later plugins need not check this.
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
	// informerLagTimeout is the time after the deletion of a namespace during which the informer may be outdated.
	informerLagTimeout = 30 * time.Second
	// deletions is the number of deleted namespaces that are remembered.
	deletions = 1000
)

var (
	errProtectedNamespace = errors.New("this namespace may not be deleted")
	errClusterDeleting    = errors.New("unable to create new content in the logical cluster because it is being deleted")
)

// Config configures the plugin.
type Config struct {
	// Clients and Namespaces cover all logical clusters of the server.
	Clients    *client.Factory
	Namespaces *client.Informer[*corev1.Namespace]
	// LogicalCluster returns a logical cluster from a cache, or nil.
	LogicalCluster func(name logicalcluster.Name) *corev1alpha1.LogicalCluster
	// Unstored resources are created but not stored.
	Unstored []schema.GroupResource
}

type plugin struct {
	Config
	ready   percluster.Ready
	deleted *utilcache.LRUExpireCache
}

// NewLifecycle returns the plugin. It is a mutating one, because it must run before any plugin changes the object.
func NewLifecycle(c Config) percluster.Mutator {
	p := &plugin{Config: c, ready: percluster.Ready{c.Namespaces}, deleted: utilcache.NewLRUExpireCache(deletions)}
	return percluster.Mutator{
		Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete, admission.Connect), Admits: p.admit,
	}
}

func (p *plugin) admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := p.admitCreate(a, cluster); err != nil {
		return err
	}
	if a.GetKind().GroupKind() == corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind() {
		return p.admitNamespace(a, cluster)
	}
	operation := a.GetOperation()
	// The result of an access review must not disclose whether the namespace exists.
	isReview := a.GetResource().GroupResource() == authorizationv1.Resource("localsubjectaccessreviews")
	if a.GetNamespace() == "" || operation == admission.Delete || operation == admission.Update || isReview {
		return nil
	}
	if err := p.ready.Wait(ctx); err != nil {
		return err
	}
	key := client.Key{Cluster: cluster, Name: a.GetNamespace()}
	if len(content.IsPathSegmentName(key.Name)) > 0 {
		return apierrors.NewNotFound(corev1.Resource("namespaces"), key.Name) // no request can name it
	}
	namespace, err := p.Namespaces.Lister().Get(key)
	_, deleted := p.deleted.Get(key) // it may have been created again since
	if err != nil || deleted || namespace.Status.Phase == corev1.NamespaceTerminating {
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

// admitCreate rejects creates in a logical cluster that is being deleted, except by the server itself.
// Otherwise, clients could create objects as fast as they are deleted, or after the last check.
func (p *plugin) admitCreate(a admission.Attributes, cluster logicalcluster.Name) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" || percluster.IsServer(a.GetUserInfo()) || slices.Contains(p.Unstored, a.GetResource().GroupResource()) {
		return nil
	}
	if lc := p.LogicalCluster(cluster); lc != nil && lc.Status.Phase == corev1alpha1.LogicalClusterPhaseDeleting {
		return admission.NewForbidden(a, errClusterDeleting)
	}
	return nil
}

// admitNamespace protects the default namespace, and remembers deleted namespaces so that nothing is created in them
// before the informer sees the deletion.
func (p *plugin) admitNamespace(a admission.Attributes, cluster logicalcluster.Name) error {
	if a.GetOperation() != admission.Delete {
		return nil
	}
	// The server itself deletes the content of logical clusters.
	if a.GetName() == metav1.NamespaceDefault && !percluster.IsServer(a.GetUserInfo()) {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errProtectedNamespace)
	}
	p.deleted.Add(client.Key{Cluster: cluster, Name: a.GetName()}, nil, informerLagTimeout)
	return nil
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
