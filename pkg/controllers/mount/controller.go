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

// Store is what the shard stores and serves.
type Store interface {
	// KindOf returns what a logical cluster serves under a kind, false if there is nothing.
	KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (storage.Kind, bool, error)
	// Listen has changed called with the key of each object that is written, or with none
	// when any may have been, until stop is called.
	Listen(changed func(key string)) (stop func())
}

// Config is what the controller needs. Workspaces and Bindings are those of all logical
// clusters of the shard.
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

// New returns the controller. Its keys are Workspaces.
func New(config Config) *reconcile.Controller[client.Key] {
	c := &controller{Config: config, follower: newFollower(config.Store.Listen)}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: c.reconcile,
		Sources: []reconcile.Source[client.Key]{c.follower.source, c.workspaces, c.bindings},
	})
}

// workspaces has those looked at that are mounts.
func (c *controller) workspaces(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	add := func(ws *tenancyv1alpha1.Workspace) {
		if ws.Spec.Mount != nil {
			queue.Add(client.KeyOf(ws))
		}
	}
	return c.Workspaces.AddEventHandler(client.Handler[*tenancyv1alpha1.Workspace]{
		OnAdd:    func(ws *tenancyv1alpha1.Workspace, _ bool) { add(ws) },
		OnUpdate: func(_, ws *tenancyv1alpha1.Workspace) { add(ws) },
		OnDelete: func(last *tenancyv1alpha1.Workspace, _ bool) { add(last) },
	}).Remove, nil
}

// bindings has the mounts of a logical cluster looked at that binds something else.
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
	url, p, err := c.look(ctx, key, ws.Spec.Mount.Reference)
	if err != nil {
		return reconcile.Result{}, err
	}
	written, err := reconcile.Commit(ctx, kinds.Workspaces.In(c.Local.Cluster(key.Cluster.Path())), ws, mounted(ws, url, p))
	if written != nil && written.ResourceVersion != ws.ResourceVersion {
		c.latest.Wrote(written)
	}
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return reconcile.Result{}, err
}

// look finds the object that a Workspace mounts, has its changes followed from then on, and
// returns where it leads, or why it leads nowhere.
func (c *controller) look(ctx context.Context, key client.Key, ref tenancyv1alpha1.ObjectReference) (url string, p *problem, err error) {
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
	// Without a version in the request, the answer is what a quorum has.
	obj, err := objects.Resource(kind.Resource).Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", notFound("there is no %s %q", ref.Kind, ref.Name), nil
	case err != nil:
		return "", nil, fmt.Errorf("%s %s: %w", ref.Kind, ref.Name, err)
	}
	url, p = target(obj, ref)
	return url, p, nil
}
