package mcprovider_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
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

// two is a Shardplane with two shards that tests share. Each uses separate names of workspaces.
var two = harness.Shared{Options: harness.Options{Shards: 2}}

// fixture contains workspaces on both shards.
type fixture struct {
	options mcprovider.Options
	proxy   *client.Factory
	names   []logicalcluster.Name
}

// newFixture creates workspaces with a prefix.
func newFixture(t *testing.T, prefix string, workspaces int) *fixture {
	t.Helper()
	c := two.Get(t)
	w := &fixture{
		proxy:   harness.NewFactory(t, c.Proxy()),
		options: mcprovider.Options{Config: c.Proxy(), Shards: shards.FromRoot(harness.NewFactory(t, c.Shard(0)).Cluster(core.RootCluster.Path()))},
	}
	for n := range workspaces {
		w.names = append(w.names, harness.Workspace(t, w.proxy, "root", fmt.Sprint(prefix, n), harness.ShardName(n%2)))
	}
	return w
}

func (w *fixture) put(t *testing.T, name logicalcluster.Name, content string) {
	t.Helper()
	in := kinds.ConfigMaps.InNamespace(w.proxy.Cluster(name.Path()), "default")
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"content": content}}
	_, err := in.Create(t.Context(), obj, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = in.Update(t.Context(), obj, metav1.UpdateOptions{})
	}
	require.NoError(t, err)
}

func (w *fixture) secret(t *testing.T, name logicalcluster.Name) string {
	t.Helper()
	obj, err := kinds.Secrets.InNamespace(w.proxy.Cluster(name.Path()), "default").Get(t.Context(), "a", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	require.NoError(t, err)
	return string(obj.Data["content"])
}

// copier copies each ConfigMap default/a to a Secret that it owns, and records an Event.
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
	// Reads return the last write.
	read := &corev1.Secret{}
	if err := c.Get(ctx, request.NamespacedName, read); err != nil {
		return reconcile.Result{}, reconcile.TerminalError(err)
	}
	if got := string(read.Data["content"]); got != from.Data["content"] {
		return reconcile.Result{}, reconcile.TerminalError(fmt.Errorf("read %q after writing %q", got, from.Data["content"]))
	}
	return reconcile.Result{}, nil
}

// TestShardplane checks a controller in workspaces of two shards, built with For and with Sources. It must restore deleted objects, and
// read its own writes.
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
			w := newFixture(t, test.name, 6)
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
			copied("new objects are copied", "first")
			for _, name := range w.names {
				w.put(t, name, "second")
			}
			copied("changes are copied", "second")
			for _, name := range w.names {
				require.NoError(t, kinds.Secrets.InNamespace(w.proxy.Cluster(name.Path()), "default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
			}
			copied("deleted copies are created again", "second")
			require.Empty(t, errs.all())
			events := client.DefineResource[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "events")
			for _, name := range w.names {
				eventually(t, "an Event is recorded", func() bool {
					list, err := events.InNamespace(w.proxy.Cluster(name.Path()), "default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Copied"})
					return err == nil && len(list.Items) >= 2 && list.Items[0].InvolvedObject.Name == "a"
				})
			}
		})
	}
}

// failures records terminal errors of a reconciler.
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

// TestShardplaneRing divides the workspaces of two shards among two replicas.
func TestShardplaneRing(t *testing.T) {
	t.Parallel()
	sourcesAndEngaged(t, func(t *testing.T, noEngage bool) {
		w := newFixture(t, fmt.Sprintf("ring-%t-", noEngage), 10)
		for _, name := range w.names {
			w.put(t, name, "first")
		}
		w.options.NoEngage = noEngage
		testRing(t, w.options, w.names, func(name logicalcluster.Name, content string) { w.put(t, name, content) })
	})
}
