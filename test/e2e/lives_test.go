package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// livesTimeout is how long one step of a life may take while servers are killed.
const livesTimeout = time.Minute

var (
	workspacesOf      = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	logicalClustersOf = schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}
	bindingsOf        = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}
	exportsOf         = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apiexports"}
	schemasOf         = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiresourceschemas"}
	gizmosOf          = schema.GroupVersionResource{Group: "lives.example.com", Version: "v1", Resource: "gizmos"}
	mapsOf            = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// life is that of a workspace which binds an export, holds objects with owners, and ends in
// one of several ways.
type life struct {
	proxy         *client.Factory
	name, cluster string
	removed       bool // the workspace
	gizmos, maps  []string
}

func (l *life) in() dynamic.Interface { return dynamicOf(l.proxy, l.cluster) }

func dynamicOf(f *client.Factory, cluster string) dynamic.Interface {
	d, err := f.Cluster(path(cluster)).Dynamic()
	if err != nil {
		panic(err) // of a configuration that works already
	}
	return d
}

func parse(text string, args ...any) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, text, args...), &obj.Object); err != nil {
		panic(err)
	}
	return obj
}

// until asks again and again, whatever goes wrong, for servers are killed meanwhile.
func until(ctx context.Context, what string, ask func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 30*time.Millisecond, livesTimeout, true, func(ctx context.Context) (bool, error) {
		last = ask(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %w", what, err, last)
	}
	return nil
}

// makeOne creates an object, or finds it made by a request that was not answered.
func makeOne(ctx context.Context, in dynamic.ResourceInterface, obj *unstructured.Unstructured) error {
	return until(ctx, "creating "+obj.GetKind()+" "+obj.GetName(), func(ctx context.Context) error {
		_, err := in.Create(ctx, obj, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// removeOne deletes an object and waits until it is gone.
func removeOne(ctx context.Context, in dynamic.ResourceInterface, name string, policy metav1.DeletionPropagation) error {
	if err := until(ctx, "deleting "+name, func(ctx context.Context) error {
		err := in.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}); err != nil {
		return err
	}
	return until(ctx, name+" is gone", func(ctx context.Context) error {
		obj, err := in.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is there: %v", obj.Object["status"])
		}
		return err
	})
}

// holds waits until the logical cluster has these objects with the label of the test and no others.
func holds(ctx context.Context, in dynamic.Interface, resource schema.GroupVersionResource, names []string) error {
	return until(ctx, fmt.Sprintf("there are the %s %v", resource.Resource, names), func(ctx context.Context) error {
		list, err := in.Resource(resource).Namespace("default").List(ctx, metav1.ListOptions{LabelSelector: "e2e=lives"})
		if err != nil {
			return err
		}
		var have []string
		for _, item := range list.Items {
			have = append(have, item.GetName())
		}
		if slices.Sort(have); !slices.Equal(have, names) {
			return fmt.Errorf("there are %v", have)
		}
		return nil
	})
}

// run leads the life.
func (l *life) run(ctx context.Context, n int, shard string) error {
	root := dynamicOf(l.proxy, "root")
	if err := makeOne(ctx, root.Resource(workspacesOf), parse(`{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {name: %s},
		spec: {location: {selector: {matchLabels: {name: %s}}}}}`, l.name, shard)); err != nil {
		return err
	}
	if err := until(ctx, "the workspace is Ready", func(ctx context.Context) error {
		ws, err := root.Resource(workspacesOf).Get(ctx, l.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		phase, _, _ := unstructured.NestedString(ws.Object, "status", "phase")
		if phase != "Ready" {
			return fmt.Errorf("it is %s: %v", phase, ws.Object["status"])
		}
		l.cluster, _, _ = unstructured.NestedString(ws.Object, "spec", "cluster")
		return nil
	}); err != nil {
		return err
	}
	if err := l.bind(ctx); err != nil {
		return err
	}
	if err := l.fill(ctx); err != nil {
		return err
	}
	switch n % 4 {
	case 0: // the owner goes, and what it owns before it
		l.gizmos, l.maps = nil, nil
		if err := removeOne(ctx, l.in().Resource(gizmosOf).Namespace("default"), "owner", metav1.DeletePropagationForeground); err != nil {
			return err
		}
	case 1: // the binding goes, and with it what was bound and what that owned; then it comes back
		l.gizmos, l.maps = nil, nil
		if err := removeOne(ctx, l.in().Resource(bindingsOf), "gizmos", metav1.DeletePropagationBackground); err != nil {
			return err
		}
		return l.bind(ctx)
	case 2:
		l.removed = true
		return removeOne(ctx, root.Resource(workspacesOf), l.name, metav1.DeletePropagationBackground)
	}
	return nil
}

// bind binds the export and waits until that is so.
func (l *life) bind(ctx context.Context) error {
	if err := makeOne(ctx, l.in().Resource(bindingsOf), parse(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: gizmos},
		spec: {reference: {export: {path: "root:lives", name: gizmos}}}}`)); err != nil {
		return err
	}
	return until(ctx, "the export is bound", func(ctx context.Context) error {
		b, err := l.in().Resource(bindingsOf).Get(ctx, "gizmos", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if phase, _, _ := unstructured.NestedString(b.Object, "status", "phase"); phase != "Bound" || b.GetDeletionTimestamp() != nil {
			return fmt.Errorf("it is %s: %v", phase, b.Object["status"])
		}
		return nil
	})
}

// fill makes an owner, what it owns, and what that owns.
func (l *life) fill(ctx context.Context) error {
	l.gizmos, l.maps = []string{"owner"}, []string{"leaf", "twig"}
	gizmos, maps := l.in().Resource(gizmosOf).Namespace("default"), l.in().Resource(mapsOf).Namespace("default")
	if err := makeOne(ctx, gizmos, parse(`{apiVersion: lives.example.com/v1, kind: Gizmo, metadata: {name: owner, labels: {e2e: lives}}}`)); err != nil {
		return err
	}
	owned := func(name, apiVersion, kind, owner string, of dynamic.ResourceInterface) error {
		var uid string
		if err := until(ctx, "reading "+owner, func(ctx context.Context) error {
			obj, err := of.Get(ctx, owner, metav1.GetOptions{})
			if err == nil {
				uid = string(obj.GetUID())
			}
			return err
		}); err != nil {
			return err
		}
		return makeOne(ctx, maps, parse(`{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, labels: {e2e: lives},
			ownerReferences: [{apiVersion: %s, kind: %s, name: %s, uid: %q, blockOwnerDeletion: true}]}}`, name, apiVersion, kind, owner, uid))
	}
	if err := owned("twig", "lives.example.com/v1", "Gizmo", "owner", gizmos); err != nil {
		return err
	}
	return owned("leaf", "v1", "ConfigMap", "twig", maps)
}

// provide makes the export, with the first schema.
func provide(t *testing.T, proxy *client.Factory) dynamic.Interface {
	t.Helper()
	workspace(t, proxy, "root", "lives", "shard-1")
	provider := dynamicOf(proxy, "root:lives")
	for _, version := range []string{"v1", "v2"} {
		_, err := provider.Resource(schemasOf).Create(t.Context(), parse(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIResourceSchema, metadata: {name: %s.gizmos.lives.example.com},
			spec: {group: lives.example.com, names: {kind: Gizmo, listKind: GizmoList, plural: gizmos, singular: gizmo}, scope: Namespaced,
			versions: [{name: v1, served: true, storage: true, schema: {type: object, description: %s}}]}}`, version, version), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err := provider.Resource(exportsOf).Create(t.Context(), parse(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: gizmos},
		spec: {resources: [{group: lives.example.com, name: gizmos, schema: v1.gizmos.lives.example.com, storage: {crd: {}}}]}}`), metav1.CreateOptions{})
	require.NoError(t, err)
	return provider
}

// TestLivesAmongKills kills servers, with kill -9, while workspaces are created, bind an
// export that gets a new schema, hold objects with owners, unbind, and are deleted. In the
// end each is as it should be, and nothing is left of what was deleted.
func TestLivesAmongKills(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: kills processes again and again")
	}
	c := processes.Get(t)
	proxy := factory(t, c.Proxy())
	provider := provide(t, proxy)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))

	shards := []string{"root", "shard-1"}
	lives := make([]*life, 48)
	results := make(chan error, len(lives))
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for n := w; n < len(lives); n += 4 {
				l := &life{proxy: proxy, name: fmt.Sprintf("life-%d", n)}
				lives[n] = l
				if err := l.run(t.Context(), n/4, shards[n%2]); err != nil {
					results <- fmt.Errorf("%s, in %s on %s: %w", l.name, l.cluster, shards[n%2], err)
				} else {
					results <- nil
				}
			}
		})
	}
	done := 0
	kills := 0
	for ; done < len(lives); kills++ {
		timer := time.NewTimer(time.Duration(rng.Int64N(int64(time.Second))))
		for waiting := true; waiting && done < len(lives); {
			select {
			case err := <-results:
				require.NoError(t, err)
				done++
			case <-timer.C:
				waiting = false
			}
		}
		victims := append([]string{"cache-server", "front-proxy"}, slices.Repeat(shards, 2)...)
		victim := c.Component(victims[rng.IntN(len(victims))])
		victim.Kill()
		victim.Start()
		if kills == 2 {
			require.NoError(t, until(t.Context(), "the export gets a new schema", func(ctx context.Context) error {
				_, err := provider.Resource(exportsOf).Patch(ctx, "gizmos", "application/json-patch+json",
					[]byte(`[{"op":"replace","path":"/spec/resources/0/schema","value":"v2.gizmos.lives.example.com"}]`), metav1.PatchOptions{})
				return err
			}))
		}
	}
	workers.Wait()
	t.Logf("%d kills", kills)
	for _, l := range lives {
		require.NoError(t, l.check(t.Context()), l.name)
	}
	for n, shard := range shards {
		require.NoError(t, noOrphans(t.Context(), factory(t, c.Shard(n)), lives), shard)
	}
}

// check waits until the workspace is as it should be.
func (l *life) check(ctx context.Context) error {
	if l.removed {
		return until(ctx, "the workspace is gone", func(ctx context.Context) error {
			_, err := dynamicOf(l.proxy, "root").Resource(workspacesOf).Get(ctx, l.name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there: %w", err)
		})
	}
	return errors.Join(
		holds(ctx, l.in(), gizmosOf, l.gizmos),
		holds(ctx, l.in(), mapsOf, l.maps),
		until(ctx, "the binding has the new schema", func(ctx context.Context) error {
			b, err := l.in().Resource(bindingsOf).Get(ctx, "gizmos", metav1.GetOptions{})
			if err != nil {
				return err
			}
			bound, _, _ := unstructured.NestedSlice(b.Object, "status", "boundResources")
			if len(bound) != 1 || !strings.Contains(fmt.Sprint(bound), "v2.gizmos") {
				return fmt.Errorf("it has %v", bound)
			}
			return nil
		}),
	)
}

// noOrphans waits until a shard has nothing of what was removed, and no logical cluster
// whose workspace is not there.
func noOrphans(ctx context.Context, shard *client.Factory, lives []*life) error {
	wildcard, err := shard.Wildcard().Metadata()
	if err != nil {
		return err
	}
	removed := map[string]string{}
	kept := map[string]bool{}
	for _, l := range lives {
		if l.removed {
			removed[l.cluster] = l.name
		} else {
			kept[l.cluster] = true
		}
	}
	for _, resource := range []schema.GroupVersionResource{
		logicalClustersOf, bindingsOf, gizmosOf, mapsOf,
		{Version: "v1", Resource: "namespaces"}, {Version: "v1", Resource: "serviceaccounts"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	} {
		if err := until(ctx, "nothing is left of "+resource.Resource, func(ctx context.Context) error {
			list, err := wildcard.Resource(resource).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			return meta.EachListItem(list, func(o runtime.Object) error {
				obj := o.(*metav1.PartialObjectMetadata)
				if name := removed[obj.Annotations["kcp.io/cluster"]]; name != "" {
					return fmt.Errorf("%s of %s is there", obj.Name, name)
				}
				return nil
			})
		}); err != nil {
			return err
		}
	}
	return until(ctx, "each logical cluster has its workspace", func(ctx context.Context) error {
		all, err := kinds.LogicalClusters.In(shard.Wildcard()).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range all.Items {
			lc := &all.Items[i]
			if owner := lc.Spec.Owner; owner != nil && strings.HasPrefix(owner.Name, "life-") && !kept[lc.Annotations["kcp.io/cluster"]] {
				return fmt.Errorf("%s of %s is there", lc.Annotations["kcp.io/cluster"], owner.Name)
			}
		}
		return nil
	})
}
