package storage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/shardplane/shardplane/pkg/etcd"
)

// Upstream's conformance suites (k8s.io/apiserver/pkg/storage/testing). Each runs alone, and in a crowd of logical
// clusters with objects of the same names. Exceptions:
//
//   - RunTestListInconsistentContinuation, RunTestListResourceVersionMatch, RunTestGuaranteedUpdate,
//     RunTestGuaranteedUpdateChecksStoredData and RunTestTransformationFailure run without the watch cache, which
//     they do not support (kubernetes/kubernetes#109831).
//   - RunTestWatchError, RunTestWatchWithUnsafeDelete, RunTestWatchContextCancel, RunWatchErrorIsBlockingFurtherEvents
//     and RunOptionalTestProgressNotify test watches of etcd.
//   - RunTestGetListWithErrorAggregation and RunTestGetListWithoutErrorAggregation compare errors with keys that have
//     no logical cluster, and replace the transformer of etcd3 by one with a private error type.
//   - RunTestStats counts the objects of all logical clusters, so it cannot run in a crowd.
//   - The benchmarks RunBenchmark* are not conformance suites.
type suite struct {
	name string
	run  func(context.Context, *testing.T, *suiteEnv)
	// uncachedOnly and aloneOnly limit the variants.
	uncachedOnly, aloneOnly bool
	// clusterScoped uses a resource without namespaces.
	clusterScoped bool
	// created waits after each Create until the watch cache has the object.
	created bool
	// waits is set for suites that mostly wait. They run in parallel, each with its own etcd. Others depend on
	// timing, e.g. Get reads an object that expires after a second.
	waits bool
	// polls is set for suites that wait for a poll of the watch cache, every 15 s. The gate runs them without one.
	polls bool
	// ownEtcd is set for others that need their own etcd, because they compact it or compare revisions.
	ownEtcd bool
	// unsafeDelete sets the feature gate AllowUnsafeMalformedObjectDeletion.
	unsafeDelete *bool
}

type suiteEnv struct {
	*suiteStore
	store    storage.Interface
	client   *clientv3.Client
	prefix   string
	recorder *storagetesting.KubernetesRecorder
	cached   bool
	codec    *failingCodec
}

func suites() []suite { return append(append(writeSuites(), listSuites()...), watchSuites()...) }

func writeSuites() []suite {
	return []suite{
		{name: "Create", run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestCreate(ctx, t, e.store, e.checkStored)
		}},
		{name: "CreateWithTTL", waits: true, run: plainSuite(storagetesting.RunTestCreateWithTTL)},
		{name: "CreateWithKeyExist", run: plainSuite(storagetesting.RunTestCreateWithKeyExist)},
		{name: "Get", run: plainSuite(storagetesting.RunTestGet)},
		{name: "UnconditionalDelete", run: plainSuite(storagetesting.RunTestUnconditionalDelete)},
		{name: "ConditionalDelete", run: plainSuite(storagetesting.RunTestConditionalDelete)},
		{name: "DeleteWithSuggestion", run: plainSuite(storagetesting.RunTestDeleteWithSuggestion)},
		{name: "DeleteWithSuggestionAndConflict", run: plainSuite(storagetesting.RunTestDeleteWithSuggestionAndConflict)},
		{name: "DeleteWithConflict", run: plainSuite(storagetesting.RunTestDeleteWithConflict)},
		{name: "DeleteWithSuggestionOfDeletedObject", run: plainSuite(storagetesting.RunTestDeleteWithSuggestionOfDeletedObject)},
		{name: "ValidateDeletionWithSuggestion", run: plainSuite(storagetesting.RunTestValidateDeletionWithSuggestion)},
		{name: "ValidateDeletionWithOnlySuggestionValid", run: plainSuite(storagetesting.RunTestValidateDeletionWithOnlySuggestionValid)},
		{name: "PreconditionalDeleteWithSuggestion", run: plainSuite(storagetesting.RunTestPreconditionalDeleteWithSuggestion)},
		{name: "PreconditionalDeleteWithOnlySuggestionPass", run: plainSuite(storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass)},
		{name: "DeleteWithConflictAndMissingExpectedTransformOrDecodeError", unsafeDelete: new(true), run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(ctx, t, e.store, e.codec.setFailing)
		}},
		{name: "DeleteExpectedTransformOrDecodeError", unsafeDelete: new(true), run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestDeleteExpectedTransformOrDecodeError(ctx, t, e.store, e.codec.setFailing)
		}},
		{name: "DeleteWithSuggestionAndMissingExpectedTransformOrDecodeError", unsafeDelete: new(true), run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(ctx, t, e.store)
		}},
		{name: "GuaranteedUpdate", uncachedOnly: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestGuaranteedUpdate(ctx, t, e.suiteStore, e.checkStored)
		}},
		{name: "GuaranteedUpdateWithTTL", waits: true, run: plainSuite(storagetesting.RunTestGuaranteedUpdateWithTTL)},
		{name: "GuaranteedUpdateChecksStoredData", uncachedOnly: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestGuaranteedUpdateChecksStoredData(ctx, t, e.suiteStore)
		}},
		{name: "GuaranteedUpdateWithConflict", run: plainSuite(storagetesting.RunTestGuaranteedUpdateWithConflict)},
		{name: "GuaranteedUpdateWithSuggestionAndConflict", run: plainSuite(storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict)},
		{name: "TransformationFailure", uncachedOnly: true, unsafeDelete: new(false), run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestTransformationFailure(ctx, t, e.suiteStore)
		}},
		{name: "KeySchema", aloneOnly: true, run: plainSuite(storagetesting.RunTestKeySchema)},
		{name: "Stats", aloneOnly: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestStats(ctx, t, e.store, e.codec, e.transformer, false)
		}},
		{name: "CompactRevision", waits: true, polls: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestCompactRevision(ctx, t, e.store, e.increaseRV, e.compactAndWait)
		}},
	}
}

func listSuites() []suite {
	return []suite{
		{name: "List", waits: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestList(ctx, t, e.store, e.compact, e.cached, e.recorder)
		}},
		{name: "ConsistentList", ownEtcd: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestConsistentList(ctx, t, consistentStore{e.store, e.cached}, e.increaseRVAfterProgress, e.cached, true, e.cached)
		}},
		{name: "GetListNonRecursive", waits: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestGetListNonRecursive(ctx, t, e.increaseRV, e.store)
		}},
		{name: "GetListRecursivePrefix", run: plainSuite(storagetesting.RunTestGetListRecursivePrefix)},
		{name: "ListContinuation", run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestListContinuation(ctx, t, e.store, nil)
		}},
		{name: "ListPaginationRareObject", run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestListPaginationRareObject(ctx, t, e.store, nil)
		}},
		{name: "ListContinuationWithFilter", run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestListContinuationWithFilter(ctx, t, e.store, nil)
		}},
		{name: "ListInconsistentContinuation", uncachedOnly: true, ownEtcd: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestListInconsistentContinuation(ctx, t, e.store, e.compact)
		}},
		{name: "ListResourceVersionMatch", uncachedOnly: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestListResourceVersionMatch(ctx, t, e.suiteStore)
		}},
		{name: "ListPaging", run: plainSuite(storagetesting.RunTestListPaging)},
		{name: "NamespaceScopedList", run: plainSuite(storagetesting.RunTestNamespaceScopedList)},
	}
}

func watchSuites() []suite {
	return []suite{
		{name: "Watch", run: plainSuite(storagetesting.RunTestWatch)},
		{name: "WatchFromZero", run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestWatchFromZero(ctx, t, e.store, nil)
		}},
		{name: "DeleteTriggerWatch", run: plainSuite(storagetesting.RunTestDeleteTriggerWatch)},
		{name: "WatchFromNonZero", run: plainSuite(storagetesting.RunTestWatchFromNonZero)},
		{name: "DelayedWatchDelivery", waits: true, run: plainSuite(storagetesting.RunTestDelayedWatchDelivery)},
		{name: "WatcherTimeout", run: plainSuite(storagetesting.RunTestWatcherTimeout)},
		{name: "WatchDeleteEventObjectHaveLatestRV", run: plainSuite(storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV)},
		{name: "WatchInitializationSignal", run: plainSuite(storagetesting.RunTestWatchInitializationSignal)},
		{name: "ClusterScopedWatch", clusterScoped: true, run: plainSuite(storagetesting.RunTestClusterScopedWatch)},
		{name: "NamespaceScopedWatch", run: plainSuite(storagetesting.RunTestNamespaceScopedWatch)},
		{name: "WatchDispatchBookmarkEvents", waits: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, e.store, e.cached)
		}},
		{name: "WatchBookmarksWithCorrectResourceVersion", waits: true, run: func(ctx context.Context, t *testing.T, e *suiteEnv) {
			storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(ctx, t, noDeadlineStore{e.store})
		}},
		{name: "SendInitialEventsBackwardCompatibility", run: plainSuite(storagetesting.RunSendInitialEventsBackwardCompatibility)},
		{name: "WatchSemantics", created: true, ownEtcd: true, run: plainSuite(storagetesting.RunWatchSemantics)},
		{name: "WatchSemanticInitialEventsExtended", created: true, run: plainSuite(storagetesting.RunWatchSemanticInitialEventsExtended)},
		{name: "WatchListMatchSingle", created: true, run: plainSuite(storagetesting.RunWatchListMatchSingle)},
	}
}

func plainSuite(run func(context.Context, *testing.T, storage.Interface)) func(context.Context, *testing.T, *suiteEnv) {
	return func(ctx context.Context, t *testing.T, e *suiteEnv) {
		t.Helper()
		run(ctx, t, e.store)
	}
}

// runsIn returns whether a suite runs in a variant. The gate has one variant of each suite, with a crowd if possible.
func (s suite) runsIn(cached, crowd bool) bool {
	switch {
	case s.aloneOnly && crowd, s.uncachedOnly && cached, !s.uncachedOnly && !s.polls && !cached:
		return false
	case testing.Short():
		return crowd != s.aloneOnly && (!s.polls || !cached)
	}
	return true
}

// TestConformance runs suites that depend on timing sequentially.
func TestConformance(t *testing.T) { runSuites(t, false) }

// TestConformanceInParallel runs suites that wait in parallel.
func TestConformanceInParallel(t *testing.T) {
	t.Parallel()
	runSuites(t, true)
}

// runSuites has a single level of subtests, so that those that wait are parallel across variants.
func runSuites(t *testing.T, waits bool) {
	t.Helper()
	run := func(variant string, s suite, newEnv func(*testing.T) *suiteEnv) {
		if s.waits != waits {
			return
		}
		t.Run(variant+"/"+s.name, func(t *testing.T) {
			if s.waits {
				t.Parallel()
			}
			if s.unsafeDelete != nil {
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, *s.unsafeDelete)
				etcd3.TestOnlySetFatalOnDecodeError(t, false)
			}
			s.run(in(t.Context(), suiteCluster), t, newEnv(t))
		})
	}
	for _, cached := range []bool{true, false} {
		for _, crowd := range []bool{false, true} {
			for _, s := range suites() {
				if s.runsIn(cached, crowd) {
					run(fmt.Sprintf("cached=%t/crowd=%t", cached, crowd), s, func(t *testing.T) *suiteEnv {
						t.Helper()
						return newSuiteEnv(t, s, cached, crowd)
					})
				}
			}
		}
	}
	// The suites of watches also run with a selector for the complete ring, which the hub serves.
	for _, s := range watchSuites() {
		run("hub", s, func(t *testing.T) *suiteEnv {
			t.Helper()
			e := newSuiteEnv(t, s, true, true)
			e.ring = selectorOf(t, ring)
			return e
		})
	}
}

const suiteValuePrefix = "test!"

func newSuiteEnv(t *testing.T, s suite, cached, crowd bool) *suiteEnv {
	t.Helper()
	prefix := "/registry"
	var server *etcd.Server
	if s.waits || s.ownEtcd {
		server = startEtcd(t)
	} else {
		server, prefix = commonEtcd(t)
	}
	client := *server.Client()
	hidden := hideCluster(client.Kubernetes)
	client.Kubernetes = hidden
	e := &suiteEnv{client: client.Client, prefix: prefix, recorder: hidden.recorder, cached: cached, codec: &failingCodec{Codec: podCodec(t)}}
	transformer := newSwappableTransformer(storagetesting.NewPrefixTransformer([]byte(suiteValuePrefix), false))
	cfg := BackendConfig{Client: &client, Prefix: prefix, Transformers: sameForAll{transformer}}
	keyFunc := podKey
	if s.clusterScoped {
		keyFunc = func(obj runtime.Object) (string, error) { return storage.NoNamespaceKeyFunc("/pods/", obj) }
	}
	var opened *tenantStorage
	if cached {
		opened = openWith(t, backendOf(t, cfg), podsGR, e.codec, keyFunc)
		require.NoError(t, opened.cache.Wait(t.Context()))
	} else {
		opened = openUncached(t, backendOf(t, cfg), e.codec)
	}
	e.suiteStore = &suiteStore{tenantStorage: opened, transformer: transformer, crowd: crowd, end: make(chan struct{})}
	t.Cleanup(func() { close(e.end) })
	e.store = e.suiteStore
	if s.created && cached {
		e.store = createdStore{e.suiteStore}
	}
	if crowd {
		for _, cluster := range adjacentClusters {
			create(in(t.Context(), cluster), t, opened, newPod("test-ns", "foo"))
		}
	}
	return e
}

// openUncached opens the storage of pods without a watch cache. It does not support watches.
func openUncached(t *testing.T, b *Backend, codec runtime.Codec) *tenantStorage {
	t.Helper()
	raw := openRaw(t, b, codec)
	return &tenantStorage{
		keys: keyspace{root: "/pods/"}, resource: podsGR, getAttrs: podAttrs, unreadable: b.Unreadable,
		inner: raw, raw: raw, cache: neverReady{}, readyWait: 1,
	}
}

// createdStore waits after each Create until the watch cache and the hub have the object.
type createdStore struct{ *suiteStore }

func (s createdStore) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.suiteStore.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	version, err := s.Versioner().ObjectResourceVersion(out)
	if err != nil {
		return err
	}
	if err := s.hub.WaitFresh(ctx, version); err != nil {
		return err
	}
	return s.Get(ctx, key, storage.GetOptions{ResourceVersion: fmt.Sprint(version)}, &example.Pod{})
}

// consistentStore waits after each consistent list until the watch cache has its resource version, because the hub may
// have served the list, and receives progress notifications before the watch cache.
type consistentStore struct {
	storage.Interface
	cached bool
}

func (s consistentStore) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	if err := s.Interface.GetList(ctx, key, opts, out); err != nil || !s.cached || opts.ResourceVersion != "" {
		return err
	}
	list, err := meta.ListAccessor(out)
	if err != nil {
		return err
	}
	return s.Get(ctx, key+"/none", storage.GetOptions{ResourceVersion: list.GetResourceVersion(), IgnoreNotFound: true}, &example.Pod{})
}

// noDeadlineStore creates objects without the deadline of the suite, which expects that 100 of them need less than 3 s.
type noDeadlineStore struct{ storage.Interface }

func (s noDeadlineStore) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return s.Interface.Create(context.WithoutCancel(ctx), key, obj, out, ttl)
}

// checkStored checks the invariants of the stored value.
func (e *suiteEnv) checkStored(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	got, err := e.client.Get(ctx, e.prefix+key[:len("/pods/")]+suiteCluster+"/"+key[len("/pods/"):])
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	decoded, err := runtime.Decode(e.codec, got.Kvs[0].Value[len(suiteValuePrefix):])
	require.NoError(t, err)
	pod := decoded.(*example.Pod)
	require.Empty(t, pod.ResourceVersion)
	require.Empty(t, pod.SelfLink) //nolint:staticcheck // it must not be stored
	require.Equal(t, suiteCluster, pod.Annotations["kcp.io/cluster"])
}

func (e *suiteEnv) increaseRV(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	resp, err := e.client.Put(ctx, "increaseRV", "ok")
	require.NoError(t, err)
	return resp.Header.Revision
}

// increaseRVAfterProgress calls increaseRV after etcd has processed all progress requests on the stream of the watch
// cache. A slow read makes upstream's cache send two requests, and a late second response would include writes after
// the read.
func (e *suiteEnv) increaseRVAfterProgress(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	if e.cached {
		stream, cancel := context.WithCancel(clientv3.WithRequireLeader(cacheContext(ctx, fmt.Sprintf("cache %d of %s", caches.Load(), e.keys.root))))
		defer cancel()
		created, ok := <-e.client.Watch(stream, "progress", clientv3.WithCreatedNotify())
		require.True(t, ok && created.Created)
	}
	return e.increaseRV(ctx, t)
}

// compact compacts etcd and the watch cache, if there is one.
func (e *suiteEnv) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	rv, err := e.Versioner().ParseResourceVersion(resourceVersion)
	require.NoError(t, err)
	version, _, _, err := etcd3.Compact(ctx, e.client, 0, int64(rv))
	if err != nil {
		_, _, _, err = etcd3.Compact(ctx, e.client, version, int64(rv))
	}
	require.NoError(t, err)
	if e.cached {
		require.NoError(t, e.cache.(*cacher.Cacher).Compact(resourceVersion))
	}
}

// compactAndWait compacts etcd and waits until the storage has noticed.
func (e *suiteEnv) compactAndWait(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	e.compact(ctx, t, resourceVersion)
	rv, err := e.Versioner().ParseResourceVersion(resourceVersion)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return e.CompactRevision() == int64(rv) }, time.Minute, 50*time.Millisecond)
}
