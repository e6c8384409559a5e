package client_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

type log struct {
	mu     sync.Mutex
	events []string
}

func (l *log) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, fmt.Sprintf(format, args...))
}

func (l *log) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.events...)
}

func (l *log) has(want string) func() bool {
	return func() bool { return slices.Contains(l.all(), want) }
}

func recordTo(l *log) client.Handler[*corev1.ConfigMap] {
	return client.Handler[*corev1.ConfigMap]{
		OnAdd: func(obj *corev1.ConfigMap, initial bool) { l.add("add %s initial=%t", client.KeyOf(obj), initial) },
		OnUpdate: func(old, obj *corev1.ConfigMap) {
			l.add("update %s %s->%s", client.KeyOf(obj), old.Data["v"], obj.Data["v"])
		},
		OnDelete: func(last *corev1.ConfigMap, tombstone bool) {
			l.add("delete %s tombstone=%t", client.KeyOf(last), tombstone)
		},
	}
}

func value(v string) func(*corev1.ConfigMap) {
	return func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"v": v} }
}

func TestInformerKeepsClustersApart(t *testing.T) {
	for _, watchList := range []bool{true, false} {
		t.Run(fmt.Sprintf("watchList=%t", watchList), func(t *testing.T) {
			server, factory := newServer(t)
			for i := range 20 {
				cluster := logicalcluster.Name(fmt.Sprintf("c%d", i))
				server.Put(t, gvr, configMap(cluster, "default", "same", value(cluster.String())))
			}
			events := &log{}
			informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{DisableWatchList: !watchList})
			informer.AddEventHandler(recordTo(events))
			runSynced(t, informer)

			require.Equal(t, 20, informer.Lister().Len())
			require.Len(t, informer.Lister().List(nil), 20)
			require.Len(t, informer.Lister().Clusters(), 20)
			require.Len(t, events.all(), 20)
			for i := range 20 {
				cluster := logicalcluster.Name(fmt.Sprintf("c%d", i))
				cm, err := informer.Lister().Cluster(cluster).Get("default", "same")
				require.NoError(t, err)
				require.Equal(t, cluster.String(), cm.Data["v"])
				require.Contains(t, events.all(), fmt.Sprintf("add %s|default/same initial=true", cluster))
			}
			_, err := informer.Lister().Cluster("c1").Get("default", "other")
			require.True(t, apierrors.IsNotFound(err))

			server.Put(t, gvr, configMap("c3", "default", "same", value("new")))
			server.Delete(t, gvr, "", "c4", "default", "same")
			server.Put(t, gvr, configMap("late", "ns", "x"))
			eventually(t, events.has("add late|ns/x initial=false"), "the new object is received")
			require.Contains(t, events.all(), "update c3|default/same c3->new")
			require.Contains(t, events.all(), "delete c4|default/same tombstone=false")
			require.Equal(t, 20, informer.Lister().Len())
			require.Empty(t, informer.Lister().Cluster("c4").List(nil))

			late := &log{}
			remove := informer.AddEventHandler(recordTo(late)).Remove
			require.Len(t, late.all(), 20, "a late handler must be notified of all objects")
			remove()
			server.Put(t, gvr, configMap("later", "ns", "x"))
			eventually(t, events.has("add later|ns/x initial=false"), "the first handler continues")
			require.Len(t, late.all(), 20)
		})
	}
}

// TestObjectsWithoutCluster: objects without a logical cluster are reported with instructions.
func TestObjectsWithoutCluster(t *testing.T) {
	server, factory := newServer(t)
	server.Put(t, gvr, configMap("a", "default", "same"))
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
	runSynced(t, informer)
	require.NoError(t, informer.LastError())
	unnamed := configMap("", "default", "same")
	delete(unnamed.Annotations, logicalcluster.AnnotationKey)
	server.Put(t, gvr, unnamed)
	eventually(t, func() bool { return informer.LastError() != nil }, "the error is reported")
	require.ErrorContains(t, informer.LastError(), "lack the annotation kcp.io/cluster, so that those with the same namespace and name cannot be distinguished: check that")
	_, err := informer.Lister().Cluster("a").Get("default", "same")
	require.NoError(t, err, "objects with a logical cluster must be kept")
	server.Put(t, gvr, configMap("b", "default", "same"))
	eventually(t, func() bool { return informer.Lister().Len() == 3 }, "the informer continues")
}

func TestInformerOfOneCluster(t *testing.T) {
	server, factory := newServer(t)
	server.Put(t, gvr, configMap("one", "a", "x", func(cm *corev1.ConfigMap) { cm.Labels = map[string]string{"app": "yes"} }))
	server.Put(t, gvr, configMap("one", "b", "x"))
	server.Put(t, gvr, configMap("two", "a", "x"))

	all := kinds.ConfigMaps.Informer(factory.Cluster(logicalcluster.NewPath("one")), client.InformerOptions[*corev1.ConfigMap]{
		Indexers: map[string]client.IndexFunc[*corev1.ConfigMap]{
			"namespace": func(cm *corev1.ConfigMap) []string { return []string{cm.Namespace} },
		},
	})
	namespaced := kinds.ConfigMaps.Informer(factory.Cluster(logicalcluster.NewPath("one")), client.InformerOptions[*corev1.ConfigMap]{Namespace: "b"})
	labelled := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{LabelSelector: "app=yes"})
	group := &client.Group{}
	group.Add(all, namespaced)
	run(t, group)
	group.Add(labelled)
	waitSynced(t, all, namespaced, labelled)

	require.Equal(t, 2, all.Lister().Len())
	require.Equal(t, 1, namespaced.Lister().Len())
	require.Equal(t, 1, labelled.Lister().Len())
	require.Len(t, all.Lister().Cluster("one").ListNamespace("a", nil), 1)
	require.Len(t, all.Lister().Cluster("one").List(labels.SelectorFromSet(labels.Set{"app": "yes"})), 1)
	require.Len(t, all.Lister().List(labels.SelectorFromSet(labels.Set{"app": "yes"})), 1)

	indexed, err := all.Lister().ByIndex("namespace", "b")
	require.NoError(t, err)
	require.Len(t, indexed, 1)
	_, err = all.Lister().ByIndex("nope", "b")
	require.ErrorContains(t, err, "InformerOptions.Indexers")
	server.Delete(t, gvr, "", "one", "b", "x")
	eventually(t, func() bool {
		indexed, err := all.Lister().ByIndex("namespace", "b")
		return err == nil && len(indexed) == 0
	}, "the deleted object is removed from the index")
}

func TestInformerResumes(t *testing.T) {
	server, factory := newServer(t)
	server.Put(t, gvr, configMap("one", "a", "x", value("1")))
	events := &log{}
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
	informer.AddEventHandler(recordTo(events))
	runSynced(t, informer)
	require.Empty(t, informer.Disconnected())

	for i := range 3 {
		server.Break()
		server.Put(t, gvr, configMap("one", "a", "x", value(fmt.Sprint(i+2))))
		eventually(t, events.has(fmt.Sprintf("update one|a/x %d->%d", i+1, i+2)), "events during a disconnection are received")
		select {
		case <-informer.Disconnected():
		default:
			require.Fail(t, "a short disconnection was not reported")
		}
	}
	server.Fail(503)
	server.CloseClientConnections()
	eventually(t, func() bool { return informer.LastError() != nil }, "the error is reported")
	require.True(t, informer.HasSynced())
	require.Equal(t, 1, informer.Lister().Len(), "the last state must be kept")
	server.Delete(t, gvr, "", "one", "a", "x")
	server.Fail(0)
	eventually(t, events.has("delete one|a/x tombstone=false"), "the deletion during the outage is received")
	lists, _ := server.Requests()
	require.Zero(t, lists, "objects were listed again")
}

func TestInformerRelists(t *testing.T) {
	server, factory := newServer(t)
	for i := range 10 {
		server.Put(t, gvr, configMap("one", "a", fmt.Sprintf("x%d", i), value("1")))
	}
	events := &log{}
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
	informer.AddEventHandler(recordTo(events))
	runSynced(t, informer)

	server.Fail(503)
	server.Break()
	server.Delete(t, gvr, "", "one", "a", "x1")
	server.Delete(t, gvr, "", "one", "a", "x2")
	server.Put(t, gvr, configMap("one", "a", "x2", value("again")))
	server.Put(t, gvr, configMap("one", "a", "x3", value("2")))
	server.Compact()
	server.Fail(0)
	eventually(t, events.has("delete one|a/x1 tombstone=true"), "a missed deletion is delivered as a tombstone")
	require.Contains(t, events.all(), "delete one|a/x2 tombstone=true")
	require.Contains(t, events.all(), "add one|a/x2 initial=false")
	require.Contains(t, events.all(), "update one|a/x3 1->2")
	require.Len(t, events.all(), 10+4, "unchanged objects must not be notified")

	server.Rollback(50)
	server.Put(t, gvr, configMap("one", "a", "after", value("1")))
	eventually(t, events.has("add one|a/after initial=false"), "a resourceVersion from the future is discarded")
}

func TestInformerWithoutWatchList(t *testing.T) {
	server, factory := newServer(t)
	server.DisableWatchList()
	for i := range 1203 {
		server.Put(t, gvr, configMap("one", "a", fmt.Sprintf("x%d", i)))
	}
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
	runSynced(t, informer)
	require.Equal(t, 1203, informer.Lister().Len())
	lists, _ := server.Requests()
	require.Equal(t, 3, lists, "three pages")
	server.Put(t, gvr, configMap("two", "a", "x"))
	eventually(t, func() bool { return informer.Lister().Len() == 1204 }, "the watch continues from the list")
}

func TestInformerOfCacheServer(t *testing.T) {
	server, factory := newServer(t)
	on := func(shard string) func(*corev1.ConfigMap) {
		return func(cm *corev1.ConfigMap) {
			cm.Annotations[request.ShardAnnotation] = shard
			cm.Data = map[string]string{"v": shard}
		}
	}
	server.Put(t, gvr, configMap("one", "a", "x", on("beta")))
	server.Put(t, gvr, configMap("one", "a", "x", on("alpha")))
	informer := kinds.ConfigMaps.Informer(factory.Shard("*").Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
	runSynced(t, informer)
	require.Equal(t, 2, informer.Lister().Len())
	cm, err := informer.Lister().Get(client.Key{Shard: "beta", Cluster: "one", Namespace: "a", Name: "x"})
	require.NoError(t, err)
	require.Equal(t, "beta|one|a/x", informer.KeyOf(cm).String())
	cm, err = informer.Lister().Cluster("one").Get("a", "x")
	require.NoError(t, err)
	require.Equal(t, "alpha", cm.Data["v"])
	_, err = informer.Lister().Cluster("one").Get("a", "y")
	require.True(t, apierrors.IsNotFound(err))

	one := kinds.ConfigMaps.Informer(factory.Shard("beta").Cluster(logicalcluster.NewPath("one")), client.InformerOptions[*corev1.ConfigMap]{})
	runSynced(t, one)
	require.Equal(t, 1, one.Lister().Len())
}

func TestShardAnnotationIsIgnoredOnShards(t *testing.T) {
	server, factory := newServer(t)
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
	runSynced(t, informer)
	server.Put(t, gvr, configMap("one", "a", "x"))
	eventually(t, func() bool { return informer.Lister().Len() == 1 }, "the object is received")
	u := configMap("one", "a", "x", func(cm *corev1.ConfigMap) { cm.Annotations[request.ShardAnnotation] = "forged" })
	require.Equal(t, "one|a/x", client.KeyOf(u).String())
	require.Equal(t, "one|a/x", informer.KeyOf(u).String())
}

func TestMetadataAndDynamicInformers(t *testing.T) {
	server, factory := newServer(t)
	server.Put(t, gvr, configMap("one", "a", "x", value("1"), func(cm *corev1.ConfigMap) {
		cm.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1"}}
	}))
	metadata, err := client.NewMetadataInformer(factory.Wildcard(), gvr, client.InformerOptions[*metav1.PartialObjectMetadata]{})
	require.NoError(t, err)
	dynamic, err := client.NewDynamicInformer(factory.Wildcard(), gvr, client.InformerOptions[*unstructured.Unstructured]{KeepManagedFields: true})
	require.NoError(t, err)
	listed, err := client.NewDynamicInformer(factory.Wildcard(), gvr, client.InformerOptions[*unstructured.Unstructured]{DisableWatchList: true})
	require.NoError(t, err)
	runSynced(t, metadata, dynamic, listed)
	key := client.Key{Cluster: "one", Namespace: "a", Name: "x"}
	partial, err := metadata.Lister().Get(key)
	require.NoError(t, err)
	require.Empty(t, partial.ManagedFields)
	full, err := dynamic.Lister().Get(key)
	require.NoError(t, err)
	require.NotEmpty(t, full.GetManagedFields())
	require.Equal(t, map[string]any{"v": "1"}, full.Object["data"])
	_, err = listed.Lister().Get(key)
	require.NoError(t, err)
}

func TestTransform(t *testing.T) {
	server, factory := newServer(t)
	server.Put(t, gvr, configMap("one", "a", "good", value("secret")))
	server.Put(t, gvr, configMap("one", "a", "bad", value("secret")))
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{
		Transform: func(cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
			if cm.Name == "bad" {
				return nil, errors.New("no")
			}
			cm.Data = nil
			return cm, nil
		},
	})
	runSynced(t, informer)
	cm, err := informer.Lister().Cluster("one").Get("a", "good")
	require.NoError(t, err)
	require.Empty(t, cm.Data)
	require.Equal(t, 1, informer.Lister().Len())
}

// TestKeep: objects that are not selected are not stored, and an object that is no longer selected counts as deleted.
func TestKeep(t *testing.T) {
	for _, listed := range []bool{false, true} {
		server, factory := newServer(t)
		server.Put(t, gvr, configMap("one", "a", "in", value("keep")))
		server.Put(t, gvr, configMap("one", "a", "out", value("drop")))
		events := &log{}
		informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{
			Keep:             func(cm *corev1.ConfigMap) bool { return cm.Data["v"] == "keep" },
			DisableWatchList: listed,
		})
		informer.AddEventHandler(recordTo(events))
		runSynced(t, informer)
		require.Equal(t, 1, informer.Lister().Len())
		server.Put(t, gvr, configMap("one", "a", "in", value("drop")))
		eventually(t, func() bool { return informer.Lister().Len() == 0 }, "the object is no longer selected")
		server.Put(t, gvr, configMap("one", "a", "out", value("keep")))
		eventually(t, events.has("add one|a/out initial=false"), "the object is selected")
		require.Len(t, events.all(), 3, "%v", events.all())
		require.Contains(t, events.all()[1], "delete one|a/in")
	}
}

// TestKeepWithOtherState: if an object becomes selected between its events, the next event is delivered, even
// a deletion.
func TestKeepWithOtherState(t *testing.T) {
	server, factory := newServer(t)
	for _, name := range []string{"changed", "deleted", "other"} {
		server.Put(t, gvr, configMap("one", "a", name, value("x")))
	}
	var wanted atomic.Bool
	events := &log{}
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{
		Keep: func(cm *corev1.ConfigMap) bool { return wanted.Load() && cm.Name != "other" },
	})
	informer.AddEventHandler(recordTo(events))
	runSynced(t, informer)
	require.Empty(t, events.all())
	wanted.Store(true)
	server.Delete(t, gvr, "", "one", "a", "other")
	server.Delete(t, gvr, "", "one", "a", "deleted")
	server.Put(t, gvr, configMap("one", "a", "changed", value("y")))
	eventually(t, events.has("add one|a/changed initial=false"), "the object is selected")
	require.Equal(t, []string{"delete one|a/deleted tombstone=false", "add one|a/changed initial=false"}, events.all())
}

func TestRunTwice(t *testing.T) {
	_, factory := newServer(t)
	informer := kinds.ConfigMaps.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
	stop := run(t, informer)
	waitSynced(t, informer)
	require.ErrorContains(t, informer.Run(t.Context()), "already running")
	stop()
	run(t, informer)
	require.True(t, informer.HasSynced())
}
