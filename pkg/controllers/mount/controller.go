package mount

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/storage"
)

// Name is the name of the controller.
const Name = "mount"

// Store gives access to the storage and APIs of the shard.
type Store interface {
	// KindOf returns the resource of a kind; false if it is not served.
	KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (storage.Kind, bool, error)
	// Listen calls changed with the key of each written object, or with an empty key if any object may have changed, until stop is
	// called.
	Listen(changed func(key string)) (stop func())
}

// Config configures the controller. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local      *client.Factory
	Workspaces *client.Informer[*tenancyv1alpha1.Workspace]
	Bindings   *client.Informer[*apisv1alpha2.APIBinding]
	Store      Store
}

type controller struct {
	Config

	follower *follower
	latest   reconcile.Latest[*tenancyv1alpha1.Workspace]
}

// NewMountController returns the controller. Its keys are Workspaces.
func NewMountController(config Config) *reconcile.Controller[client.Key] {
	c := &controller{Config: config, follower: newFollower(config.Store.Listen)}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: c.reconcile,
		Sources: []reconcile.Source[client.Key]{c.follower.source, reconcile.FromInformer(config.Workspaces, mountKey), c.bindings},
	})
}

func mountKey(ws *tenancyv1alpha1.Workspace) []client.Key {
	if ws.Spec.Mount == nil {
		return nil
	}
	return reconcile.KeysOf(ws)
}

func (c *controller) bindings(context.Context, reconcile.Queue[client.Key]) (func(), error) {
	changed := func(b *apisv1alpha2.APIBinding) { c.follower.redefined(logicalcluster.From(b)) }
	return c.Bindings.AddEventHandler(client.Handler[*apisv1alpha2.APIBinding]{
		OnAdd:    func(b *apisv1alpha2.APIBinding, _ bool) { changed(b) },
		OnUpdate: func(_, b *apisv1alpha2.APIBinding) { changed(b) },
		OnDelete: func(last *apisv1alpha2.APIBinding, _ bool) { changed(last) },
	}).Remove, nil
}

func (c *controller) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := c.Workspaces.Lister().Get(key)
	ws, exists := c.latest.Of(key, cached, err == nil)
	if !exists || ws.Spec.Mount == nil || ws.DeletionTimestamp != nil {
		c.follower.forget(key)
		return reconcile.Result{}, nil
	}
	url, p, err := c.readMount(ctx, key, ws.Spec.Mount.Reference)
	if err != nil {
		return reconcile.Result{}, err
	}
	_, err = c.latest.Commit(ctx, reconcile.Committer(c.Local, kinds.Workspaces), ws, mounted(ws, url, p))
	return reconcile.Result{}, reconcile.IgnoreNotFound(err)
}

// readMount reads the mounted object of a Workspace and follows its changes. It returns the URL, or a problem.
func (c *controller) readMount(ctx context.Context, key client.Key, ref tenancyv1alpha1.ObjectReference) (url string, p *problem, err error) {
	c.follower.follow(key, "")
	kind, served, err := c.Store.KindOf(ctx, key.Cluster, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
	if err != nil {
		return "", nil, fmt.Errorf("kind %s of %s: %w", ref.Kind, ref.APIVersion, err)
	}
	if p := misnamed(ref, kind, served); p != nil {
		return "", p, nil
	}
	c.follower.follow(key, storage.Key(kind.Prefix, kind.Identity, key.Cluster, ref.Namespace, ref.Name))
	objects, err := c.Local.Cluster(key.Cluster.Path()).Dynamic()
	if err != nil {
		return "", nil, err
	}
	// A request without a resourceVersion is a quorum read.
	obj, err := objects.Resource(kind.Resource).Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", notFound("the %s %q does not exist", ref.Kind, ref.Name), nil
	case err != nil:
		return "", nil, fmt.Errorf("%s %s: %w", ref.Kind, ref.Name, err)
	}
	url, p = target(obj, ref)
	return url, p, nil
}
