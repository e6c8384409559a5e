// Package mount updates Workspaces that mount an object from the status of the object.
//
//	Workspaces with spec.mount ─┐
//	keys of all written objects ┼─► queue ─► GET of the object: status.URL and status.phase
//	definitions and bindings ───┘               └─► phase, condition and URL of the Workspace
//
// A mounted object may be of any kind. The usage counter of the shard reports the keys of written objects, so that no watch is
// needed for a logical cluster, a kind or an object. docs/workspaces.md describes the behavior for users.
package mount

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Name is the name of the controller.
const Name = "mount"

// Store gives access to the storage and APIs of the shard.
type Store interface {
	// KindOf returns the resource of a kind; false if it is not served.
	KindOf(ctx context.Context, cluster logicalcluster.Name, kind schema.GroupVersionKind) (storage.Kind, bool, error)
	// Listen calls changed with the key of each written object, or empty if any may have changed, until stop is called.
	Listen(changed func(key string)) (stop func())
}

// Config configures the controller. The informers contain the objects of all logical clusters of the shard.
type Config struct {
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
	c := &controller{Config: config, follower: &follower{listen: config.Store.Listen}}
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

func (c *controller) bindings(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	return c.Bindings.AddKeyHandler(func(key client.Key) { c.follower.redefined(queue, key.Cluster) }, nil).Remove, nil
}

func (c *controller) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := c.Workspaces.Lister().Get(key)
	ws, exists := c.latest.Of(key, cached, err == nil)
	if !exists || ws.Spec.Mount == nil || ws.DeletionTimestamp != nil {
		c.follower.mounts.Forget(key)
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

//reference:limit object | mount: length of the URL | condition `WorkspaceMountReady`
const maxURL = 2048

type problem struct{ reason, message string }

func notFound(format string, args ...any) *problem {
	return &problem{tenancyv1alpha1.MountObjectNotFoundReason, fmt.Sprintf(format, args...)}
}

func notReady(format string, args ...any) *problem {
	return &problem{tenancyv1alpha1.MountObjectNotReadyReason, fmt.Sprintf(format, args...)}
}

func misnamed(ref tenancyv1alpha1.ObjectReference, kind storage.Kind, served bool) *problem {
	switch {
	case !served:
		return notFound("the kind %s of %s is not served in this workspace", ref.Kind, ref.APIVersion)
	case kind.Namespaced && ref.Namespace == "":
		return notFound("the kind %s is namespaced, and spec.mount.ref has no namespace", ref.Kind)
	case !kind.Namespaced && ref.Namespace != "":
		return notFound("the kind %s is not namespaced, and spec.mount.ref has a namespace", ref.Kind)
	default:
		return nil
	}
}

func target(obj *unstructured.Unstructured, ref tenancyv1alpha1.ObjectReference) (string, *problem) {
	text, _, _ := unstructured.NestedString(obj.Object, "status", "URL")
	phase, _, _ := unstructured.NestedString(obj.Object, "status", "phase")
	switch to, err := url.Parse(text); {
	case obj.GetDeletionTimestamp() != nil:
		return "", notReady("the %s %q is being deleted", ref.Kind, ref.Name)
	case phase != string(tenancyv1alpha1.MountPhaseReady):
		return "", notReady("the phase of %s %q is %q", ref.Kind, ref.Name, phase)
	case text == "":
		return "", notReady("the %s %q has no status.URL", ref.Kind, ref.Name)
	case err != nil || len(text) > maxURL || to.Scheme != "https" || to.Hostname() == "" || to.User != nil || to.RawQuery != "" || to.ForceQuery || to.Fragment != "":
		return "", notReady("the status.URL of %s %q is not a URL such as https://host:port/path, without user, query and fragment, of at most %d bytes", ref.Kind, ref.Name, maxURL)
	default:
		return text, nil
	}
}

// mounted returns the Workspace with the status of its mount. While the mount is unavailable, the URL does not change.
func mounted(ws *tenancyv1alpha1.Workspace, url string, p *problem) *tenancyv1alpha1.Workspace {
	ws = ws.DeepCopy()
	if p != nil {
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable
		conditions.MarkFalse(ws, tenancyv1alpha1.MountConditionReady, p.reason, conditionsv1alpha1.ConditionSeverityError, "%s", p.message)
	} else {
		ws.Status.Phase, ws.Spec.URL = corev1alpha1.LogicalClusterPhaseReady, url
		conditions.MarkTrue(ws, tenancyv1alpha1.MountConditionReady)
	}
	tenancy.SetPhaseLabels(ws, ws.Status.Phase, nil, nil)
	return ws
}

var definitions = storage.ResourcePrefix(apiextensionsv1.Resource("customresourcedefinitions")) + "/"

// requeueDelays are for mounts after a change of the APIs, which components observe at different times.
var requeueDelays = []time.Duration{0, time.Second, 10 * time.Second}

// follower requeues mounts when the mounted objects change.
type follower struct {
	listen func(changed func(key string)) (stop func())
	// mounts depend on their logical cluster, on the key of the mounted object, which begins with a slash, and on "".
	mounts tenancy.Dependencies[client.Key]
}

func (f *follower) source(_ context.Context, queue reconcile.Queue[client.Key]) (stop func(), err error) {
	return f.listen(func(key string) { f.changed(queue, key) }), nil
}

// changed is called for each write on the shard. An empty key stands for any object.
func (f *follower) changed(queue reconcile.Queue[client.Key], key string) {
	if definition, ok := storage.ObjectKeyOf(definitions, key); ok {
		f.redefined(queue, definition.Cluster)
		return
	}
	for _, mount := range f.mounts.Of(key) {
		queue.Add(mount)
	}
}

func (f *follower) redefined(queue reconcile.Queue[client.Key], cluster logicalcluster.Name) {
	for _, mount := range f.mounts.Of(cluster.String()) {
		for _, wait := range requeueDelays {
			queue.AddAfter(mount, wait)
		}
	}
}

// follow requeues a mount when the served APIs or the object item change. It must first be called without an item, which
// replaces the previous one. Changes after follow returned are not missed.
func (f *follower) follow(mount client.Key, item string) {
	if item == "" {
		f.mounts.Forget(mount)
		f.mounts.Remember(mount, mount.Cluster.String())
	}
	f.mounts.Remember(mount, item)
}
