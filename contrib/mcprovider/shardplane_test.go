package mcprovider_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mchandler "sigs.k8s.io/multicluster-runtime/pkg/handler"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/contrib/mcprovider"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/shards"
	"github.com/shardplane/shardplane/test/harness"
)

// two are a Shardplane of two shards, which tests share. Each has workspaces with names of its own.
var two = harness.Shared{Options: harness.Options{Shards: 2}}

// world is the Shardplane, with workspaces on both shards.
type world struct {
	options mcprovider.Options
	proxy   *client.Factory
	names   []logicalcluster.Name
}

// newWorld makes workspaces, whose names begin with prefix.
func newWorld(t *testing.T, prefix string, workspaces int) *world {
	t.Helper()
	c := two.Get(t)
	factory := func(f *client.Factory, err error) *client.Factory {
		require.NoError(t, err)
		t.Cleanup(f.CloseIdleConnections)
		return f
	}
	shard := factory(client.NewFactory(c.Shard(0)))
	w := &world{
		proxy:   factory(client.NewFactory(c.Proxy())),
		options: mcprovider.Options{Config: c.Proxy(), Shards: shards.FromRoot(shard.Cluster(core.RootCluster.Path()))},
	}
	in := kinds.Workspaces.In(w.proxy.Cluster(core.RootCluster.Path()))
	for n := range workspaces {
		ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(prefix, n)}}
		on := map[string]string{"name": []string{"root", "shard-1"}[n%2]}
		ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: on}}
		_, err := in.Create(t.Context(), ws, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	for n := range workspaces {
		var ws *tenancyv1alpha1.Workspace
		eventually(t, "the workspace is Ready", func() bool {
			var err error
			ws, err = in.Get(t.Context(), fmt.Sprint(prefix, n), metav1.GetOptions{})
			return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
		})
		w.names = append(w.names, logicalcluster.Name(ws.Spec.Cluster))
	}
	return w
}

func (w *world) put(t *testing.T, name logicalcluster.Name, content string) {
	t.Helper()
	in := kinds.ConfigMaps.InNamespace(w.proxy.Cluster(name.Path()), "default")
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"content": content}}
	_, err := in.Create(t.Context(), obj, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = in.Update(t.Context(), obj, metav1.UpdateOptions{})
	}
	require.NoError(t, err)
}

func (w *world) secret(t *testing.T, name logicalcluster.Name) string {
	t.Helper()
	obj, err := kinds.Secrets.InNamespace(w.proxy.Cluster(name.Path()), "default").Get(t.Context(), "a", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	require.NoError(t, err)
	return string(obj.Data["content"])
}

// copier copies each ConfigMap default/a into a Secret that it owns, and tells so.
type copier struct{ mcmanager.Manager }

func (r copier) Reconcile(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
	if request.Name != "a" {
		return reconcile.Result{}, nil
	}
	cluster, err := r.GetCluster(ctx, request.ClusterName)
	if err != nil {
		return reconcile.Result{}, err
	}
	c := cluster.GetClient()
	from := &corev1.ConfigMap{}
	if err := c.Get(ctx, request.NamespacedName, from); err != nil {
		return reconcile.Result{}, ctrlclient.IgnoreNotFound(err)
	}
	to := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: from.Namespace, Name: from.Name}}
	did, err := controllerutil.CreateOrUpdate(ctx, c, to, func() error {
		to.Data = map[string][]byte{"content": []byte(from.Data["content"])}
		return controllerutil.SetControllerReference(from, to, cluster.GetScheme())
	})
	if err != nil || did == controllerutil.OperationResultNone {
		return reconcile.Result{}, err
	}
	cluster.GetEventRecorder("copier").Eventf(from, to, corev1.EventTypeNormal, "Copied", "Copy", "%s: %s", did, from.Data["content"])
	// What was written is read at once.
	read := &corev1.Secret{}
	if err := c.Get(ctx, request.NamespacedName, read); err != nil {
		return reconcile.Result{}, reconcile.TerminalError(err)
	}
	if got := string(read.Data["content"]); got != from.Data["content"] {
		return reconcile.Result{}, reconcile.TerminalError(fmt.Errorf("read %q after writing %q", got, from.Data["content"]))
	}
	return reconcile.Result{}, nil
}

// TestShardplane has a controller over the workspaces of two shards, once as the builder makes
// it, and once by Sources: it works in each of them, mends what somebody else deletes, and reads
// what it has written.
func TestShardplane(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(*mcprovider.Provider, mcmanager.Manager) *mcbuilder.Builder
	}{
		{"engaged", func(_ *mcprovider.Provider, m mcmanager.Manager) *mcbuilder.Builder {
			return mcbuilder.ControllerManagedBy(m).For(&corev1.ConfigMap{}).Owns(&corev1.Secret{})
		}},
		{"sources", func(p *mcprovider.Provider, m mcmanager.Manager) *mcbuilder.Builder {
			return mcbuilder.ControllerManagedBy(m).Named("copier").
				WatchesRawSource(p.Source(&corev1.ConfigMap{})).
				WatchesRawSource(p.Source(&corev1.Secret{}, mcprovider.WithHandler(mchandler.EnqueueRequestForOwner(&corev1.ConfigMap{}))))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, test.name, 6)
			w.options.NoEngage = test.name == "sources"
			w.options.ReadYourWrites = true
			p, err := mcprovider.New(w.options)
			require.NoError(t, err)
			m := newManager(t, w.options.Config, p)
			errs := &failures{Reconciler: copier{m}}
			require.NoError(t, test.make(p, m).WithOptions(unnamed).Complete(errs))
			run(t, m.Start)

			copied := func(what, content string) {
				t.Helper()
				for _, name := range w.names {
					eventually(t, what, func() bool { return w.secret(t, name) == content })
				}
			}
			for _, name := range w.names {
				w.put(t, name, "first")
			}
			copied("what is new is copied", "first")
			for _, name := range w.names {
				w.put(t, name, "second")
			}
			copied("what changes is copied", "second")
			for _, name := range w.names {
				require.NoError(t, kinds.Secrets.InNamespace(w.proxy.Cluster(name.Path()), "default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
			}
			copied("what somebody deletes is made again", "second")
			require.Empty(t, errs.all())
			events := client.DefineResource[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "events")
			for _, name := range w.names {
				eventually(t, "it is told", func() bool {
					list, err := events.InNamespace(w.proxy.Cluster(name.Path()), "default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Copied"})
					return err == nil && len(list.Items) >= 2 && list.Items[0].InvolvedObject.Name == "a"
				})
			}
		})
	}
}

// failures are the terminal errors of a reconciler.
type failures struct {
	mcreconcile.Reconciler

	mu   sync.Mutex
	errs []error
}

func (f *failures) Reconcile(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
	result, err := f.Reconciler.Reconcile(ctx, request)
	if reconcileEnds(err) && ctx.Err() == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.errs = append(f.errs, err)
	}
	return result, err
}

func (f *failures) all() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.errs
}

// TestShardplaneRing has two replicas share the workspaces of two shards.
func TestShardplaneRing(t *testing.T) {
	sourcesAndEngaged(t, func(t *testing.T, noEngage bool) {
		w := newWorld(t, fmt.Sprintf("ring-%t-", noEngage), 10)
		for _, name := range w.names {
			w.put(t, name, "first")
		}
		w.options.NoEngage = noEngage
		testRing(t, w.options, w.names, func(name logicalcluster.Name, content string) { w.put(t, name, content) })
	})
}
