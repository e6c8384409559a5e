package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// waitLogInterval is how often the log says what the controller waits for.
const waitLogInterval = 10 * time.Second

// errOtherData says that a server does not have the data that its informer has
// followed.
var errOtherData = errors.New("a server has other data than the informer knows")

type informer = client.Informer[*unstructured.Unstructured]

// mirror replicates one resource.
type mirror struct {
	config   Config
	line     *line
	resource Resource
	progress progress
	// acknowledged is called when changes of the shard are on the cache server.
	acknowledged func()
	// verified reports whether digests are compared now.
	verified func() bool
	// current is the session that runs.
	current atomic.Pointer[session]

	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// session is one period in which two informers are followed. When a server
// turns out to have other data than its informer knows, the session ends and a
// new one starts with new informers.
type session struct {
	*mirror

	local, replicas *informer
	ledger          *ledger
	unseen          unseen
	expected        *expected
	// started is set when all objects were compared once; fruitless counts comparisons of digests
	// that have shown what is not there.
	started   atomic.Bool
	fruitless int
	// doubtful is set while the cache server may have other data than is known.
	doubtful atomic.Bool
	end      context.CancelCauseFunc
}

func newMirror(config Config, l *line) *mirror {
	m := &mirror{config: config, line: l, resource: l.Resource, acknowledged: func() {}, verified: func() bool { return false }}
	m.resource.shard, m.resource.server = config.Shard, &server{}
	if l.Path && config.LogicalClusters != nil {
		m.resource.path = config.pathOf
	}
	return m
}

// start works until ctx is done or stop is called.
func (m *mirror) start(ctx context.Context, fail context.CancelCauseFunc) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("controller", Name, "resource", m.resource.GroupResource().String()))
	ctx, m.cancel = context.WithCancel(ctx)
	for _, until := range []string{untilAcknowledged, untilMarked} {
		lag.WithLabelValues(m.resource.GroupResource().String(), until)
	}
	work := m.run
	if m.line.removed != nil {
		work = m.remove
	}
	m.ended.Go(func() {
		if err := work(ctx); err != nil {
			fail(err)
		}
	})
}

// stop returns when everything has ended.
func (m *mirror) stop() {
	m.cancel()
	m.ended.Wait()
	forget(m.resource.GroupResource().String())
}

// run follows the shard until ctx is done, in one or more sessions.
func (m *mirror) run(ctx context.Context) error {
	for {
		err := m.session(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // stopped, which is no failure
		case errors.Is(err, errOtherData):
			restarts.WithLabelValues(m.resource.GroupResource().String()).Inc()
			klog.FromContext(ctx).Info("Starting over", "reason", err.Error())
		default:
			return err
		}
	}
}

// session replicates until ctx is done or an informer turns out to know other
// data than its server has.
func (m *mirror) session(ctx context.Context) error {
	local, err := client.NewDynamicInformer(m.config.Local.Wildcard(), m.resource.GroupVersionResource,
		client.InformerOptions[*unstructured.Unstructured]{
			Name: Name + "-shard-" + m.resource.GroupResource().String(),
			// Of some kinds a shard has tens of thousands and replicates few.
			Keep:              m.resource.selects,
			KeepManagedFields: true,
		})
	if err != nil {
		return err
	}
	replicas, err := client.NewDynamicInformer(m.config.replicas().Wildcard(), m.resource.GroupVersionResource,
		client.InformerOptions[*unstructured.Unstructured]{Name: Name + "-cache-" + m.resource.GroupResource().String(), KeepManagedFields: true})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	s := &session{mirror: m, local: local, replicas: replicas, ledger: newLedger(), expected: newExpected(), end: cancel}
	s.follow()
	m.current.Store(s)
	defer m.current.Store(nil)
	for _, i := range []*informer{local, replicas} {
		wg.Go(func() { cancel(i.Run(ctx)) })
	}
	if !s.waitForSync(ctx) {
		return context.Cause(ctx)
	}
	s.initial(ctx)
	s.started.Store(true)

	controller := reconcile.New(reconcile.Config[client.Key]{
		Name: Name + "-" + m.resource.GroupResource().String(),
		Reconcile: func(ctx context.Context, key client.Key) (reconcile.Result, error) {
			return reconcile.Result{}, s.reconcile(ctx, key)
		},
		Sources: s.sources(),
		Workers: m.config.Workers,
	})
	if err := controller.Run(ctx); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// sources are all that can make a replica wrong, or notice that one is.
func (s *session) sources() []reconcile.Source[client.Key] {
	sources := []reconcile.Source[client.Key]{
		reconcile.FromInformer(s.local, keysOf),
		reconcile.FromInformer(s.replicas, keysOf),
		func(ctx context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
			ctx, cancel := context.WithCancel(ctx)
			var watchdog sync.WaitGroup
			watchdog.Go(func() { s.watchdog(ctx, queue) })
			return func() {
				cancel()
				watchdog.Wait()
			}, nil
		},
	}
	if s.config.LogicalClusters != nil && s.resource.Path {
		sources = append(sources, reconcile.FromInformer(s.config.LogicalClusters, s.inCluster))
	}
	return sources
}

// inCluster returns the keys of what is replicated of a logical cluster, whose
// path the replicas say.
func (s *session) inCluster(lc *corev1alpha1.LogicalCluster) []client.Key {
	replicated := s.local.Lister().Cluster(logicalcluster.From(lc)).List(nil)
	keys := make([]client.Key, 0, len(replicated))
	for _, local := range replicated {
		keys = append(keys, client.KeyOf(local))
	}
	return keys
}

// waitForSync waits for both informers, and now and then says for which. It is
// false if ctx ended first.
func (s *session) waitForSync(ctx context.Context) bool {
	ticker := time.NewTicker(waitLogInterval)
	defer ticker.Stop()
	for _, side := range []struct {
		name     string
		informer *informer
	}{{"shard", s.local}, {"cache server", s.replicas}} {
		for synced := false; !synced; {
			select {
			case <-ctx.Done():
				return false
			case <-side.informer.Synced():
				synced = true
			case <-ticker.C:
				klog.FromContext(ctx).Info("Waiting for the objects on the "+side.name, "err", side.informer.LastError())
			}
		}
	}
	return true
}

// keysOf returns the key under which both sides of an object are reconciled.
func keysOf(obj *unstructured.Unstructured) []client.Key {
	return []client.Key{client.KeyOf(obj)}
}

// compare decides about one object by what the informers know.
func (s *session) compare(key client.Key) (action, error) {
	local, replica, err := s.look(key)
	if err != nil {
		return actionNone, err
	}
	todo, _ := decide(s.resource, local, replica)
	return todo, nil
}

// look returns what the informers have of an object and of its replica.
func (s *session) look(key client.Key) (local, replica *unstructured.Unstructured, err error) {
	if local, err = lookup(s.local, key); err != nil {
		return nil, nil, err
	}
	key.Shard = s.config.Shard
	replica, err = lookup(s.replicas, key)
	return local, replica, err
}

// reconcile compares one object with its replica and does what is missing.
func (s *session) reconcile(ctx context.Context, key client.Key) error {
	resource := s.resource.GroupResource().String()
	objects.WithLabelValues(resource, "shard").Set(float64(s.local.Lister().Len()))
	objects.WithLabelValues(resource, "cache").Set(float64(s.replicas.Lister().Len()))

	s.ledger.begin(key)
	defer s.expected.begin(key)()
	local, replica, err := s.look(key)
	if err != nil {
		return err
	}
	todo, obj := decide(s.resource, local, replica)
	behind := todo == actionNone && s.unseen.check(key, s.replicas.ResourceVersion()) != nil
	if err = s.bring(ctx, key, todo, obj); behind || apierrors.IsConflict(err) {
		// The informer does not have the replica as it is.
		if replica, err = getObject(ctx, s.config.replicas(), s.resource, key); err != nil {
			return err
		}
		todo, obj = decide(s.resource, local, replica)
		err = s.bring(ctx, key, todo, obj)
	}
	if err != nil {
		return err
	}
	s.expect(ctx, key, local)
	s.progress.done(key)
	if todo == actionRelease {
		return nil // to be deleted as soon as the informer has seen this
	}
	if since, waited := s.ledger.done(key); waited {
		lag.WithLabelValues(resource, untilAcknowledged).Observe(time.Since(since).Seconds())
	}
	s.acknowledged()
	return nil
}

// bring does what was decided, if anything.
func (s *session) bring(ctx context.Context, key client.Key, todo action, obj *unstructured.Unstructured) error {
	if todo == actionNone {
		return nil
	}
	written, err := s.apply(ctx, key, todo, obj)
	if err != nil {
		return err
	}
	s.unseen.wrote(key, version(written))
	klog.FromContext(ctx).V(3).Info("Replicated", "action", todo, "key", key.String())
	return nil
}

// apply does what was decided, and counts it.
func (m *mirror) apply(ctx context.Context, key client.Key, todo action, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	written, err := m.write(ctx, key, todo, obj)
	operations.WithLabelValues(m.resource.GroupResource().String(), string(todo), result(err)).Inc()
	return written, err
}

// write writes to the cache server, and returns the replica as it is then, unless it is gone. Where the replica is not as the informer
// has it, the error is a conflict: the informer will catch up, and the key is
// looked at again.
func (m *mirror) write(ctx context.Context, key client.Key, todo action, obj *unstructured.Unstructured) (written *unstructured.Unstructured, err error) {
	replicas, err := m.replicaClient(key)
	if err != nil {
		return nil, err
	}
	switch todo {
	case actionCreate:
		written, err = replicas.Create(ctx, obj, metav1.CreateOptions{FieldManager: Name})
	case actionUpdate, actionRelease:
		written, err = replicas.Update(ctx, obj, metav1.UpdateOptions{FieldManager: Name})
	case actionDelete:
		// Only what was compared: by now the object may be back, and so its replica.
		uid, version := obj.GetUID(), obj.GetResourceVersion()
		err = replicas.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // there is none, as it should be
		}
	case actionNone:
	}
	if err == nil && (todo == actionCreate || todo == actionUpdate) {
		m.resource.server.learn(written)
	}
	if apierrors.IsAlreadyExists(err) || isObjectNotFound(err, key.Name) {
		return nil, apierrors.NewConflict(m.resource.GroupResource(), key.String(), err)
	}
	if err != nil && !apierrors.IsConflict(err) {
		return nil, fmt.Errorf("cannot %s the replica of %s %s: %w", todo, m.resource.GroupResource(), key, err)
	}
	return written, err
}

func (m *mirror) replicaClient(key client.Key) (dynamic.ResourceInterface, error) {
	clients, err := m.config.replicas().Cluster(key.Cluster.Path()).Dynamic()
	if err != nil {
		return nil, err
	}
	return clients.Resource(m.resource.GroupVersionResource).Namespace(key.Namespace), nil
}

// lookup returns what an informer has under key, or nil.
func lookup(i *informer, key client.Key) (*unstructured.Unstructured, error) {
	obj, err := i.Lister().Get(key)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot look up %s: %w", key, err)
	}
	return obj, nil
}

// isObjectNotFound tells a missing object from a resource that the server does
// not serve at all.
func isObjectNotFound(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name
}
