package rootca

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

const (
	// Name is the name of the controller.
	Name = "rootca"
	// ConfigMap is the name of the ConfigMap that every namespace has.
	ConfigMap = "kube-root-ca.crt"

	// descriptionAnnotation and description are those of Kubernetes.
	descriptionAnnotation = "kubernetes.io/description"
	description           = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."

	// digestAnnotation is where the informer keeps the digest of the data; no server
	// has it.
	digestAnnotation = "digest"
	// maxBackoff is long, because a quota that leaves no place may stay.
	maxBackoff = 5 * time.Minute
)

// Config is what the controller needs. The informers are those of all logical
// clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local      *client.Factory
	Namespaces *client.Informer[*corev1.Namespace]
	// ConfigMaps are those of NewInformer.
	ConfigMaps *client.Informer[*corev1.ConfigMap]
	// CA is what the ConfigMaps hold.
	CA *File
}

// NewInformer returns the informer of the ConfigMaps of this name. There is one in
// every namespace, so only what is needed to see that it is right is kept of each.
func NewInformer(local *client.Factory) *client.Informer[*corev1.ConfigMap] {
	return kinds.ConfigMaps.Informer(local.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{
		Name:          "configmaps " + ConfigMap,
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, ConfigMap).String(),
		Transform:     slim,
	})
}

func slim(m *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	kept := map[string]string{logicalcluster.AnnotationKey: m.Annotations[logicalcluster.AnnotationKey]}
	if m.Annotations[descriptionAnnotation] != "" {
		kept[digestAnnotation] = digest(m.Data)
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Annotations: kept,
	}}, nil
}

// New returns the controller. Its keys are namespaces.
func New(config Config) *reconcile.Controller[client.Key] {
	namespaces, configMaps := config.Namespaces.Lister(), config.ConfigMaps.Lister()
	r := &reconciler{
		ca:        config.CA,
		namespace: namespaces.Get,
		configMap: configMaps.Get,
		at: func(key client.Key) configMapClient {
			return kinds.ConfigMaps.InNamespace(config.Local.Cluster(key.Cluster.Path()), key.Name)
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:       Name,
		Reconcile:  r.reconcile,
		MaxBackoff: maxBackoff,
		Sources: []reconcile.Source[client.Key]{
			changes(config.Namespaces, func(ns *corev1.Namespace) client.Key { return client.KeyOf(ns) }),
			changes(config.ConfigMaps, func(m *corev1.ConfigMap) client.Key {
				key := client.KeyOf(m)
				return client.Key{Cluster: key.Cluster, Name: key.Namespace}
			}),
			// After these, so that nothing is missed between.
			sweeping(&sweeper{reconciler: r, namespaces: func() []*corev1.Namespace { return namespaces.List(nil) }, wait: newLimit().Wait}),
		},
	})
}

// changes feeds a queue with what is added, changed or deleted, but not with what is
// there from the start.
func changes[T client.Object](informer *client.Informer[T], keyOf func(obj T) client.Key) reconcile.Source[client.Key] {
	return func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
		return informer.AddEventHandler(client.Handler[T]{
			OnAdd: func(obj T, initial bool) {
				if !initial {
					queue.Add(keyOf(obj))
				}
			},
			OnUpdate: func(_, obj T) { queue.Add(keyOf(obj)) },
			OnDelete: func(last T, _ bool) { queue.Add(keyOf(last)) },
		}).Remove, nil
	}
}

// configMapClient is the client of the ConfigMaps of a namespace.
type configMapClient interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error)
	Create(ctx context.Context, obj *corev1.ConfigMap, opts metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, obj *corev1.ConfigMap, opts metav1.UpdateOptions) (*corev1.ConfigMap, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

type reconciler struct {
	ca *File
	// namespace and configMap are those of the informers.
	namespace func(key client.Key) (*corev1.Namespace, error)
	configMap func(key client.Key) (*corev1.ConfigMap, error)
	at        func(namespace client.Key) configMapClient
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	missing, wrong := r.look(key)
	return reconcile.Result{}, r.mend(ctx, key, missing, wrong)
}

// look reports whether the ConfigMap of a namespace is missing, or is another one, as far
// as the informers know.
func (r *reconciler) look(key client.Key) (missing, wrong bool) {
	namespace, err := r.namespace(key)
	if err != nil || namespace.DeletionTimestamp != nil {
		return false, false
	}
	found, err := r.configMap(client.Key{Cluster: key.Cluster, Namespace: key.Name, Name: ConfigMap})
	if err != nil {
		return true, false
	}
	return false, found.Annotations[digestAnnotation] != r.ca.current.Load().digest
}

func (r *reconciler) mend(ctx context.Context, key client.Key, missing, wrong bool) error {
	var err error
	switch {
	case missing:
		_, err = r.at(key).Create(ctx, right(&corev1.ConfigMap{}, r.ca.Content()), metav1.CreateOptions{})
	case wrong:
		err = r.replace(ctx, r.at(key))
	}
	switch {
	case err == nil, apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // it is there, which an event tells, or it or the namespace has gone
	case apierrors.IsConflict(err):
		return err
	default:
		return fmt.Errorf("writing the ConfigMap %s of namespace %s: %w", ConfigMap, key, err)
	}
}

// replace writes what the ConfigMap has to hold, if it does not.
func (r *reconciler) replace(ctx context.Context, configMaps configMapClient) error {
	ca := r.ca.current.Load()
	found, err := configMaps.Get(ctx, ConfigMap, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if kept, _ := slim(found); kept.Annotations[digestAnnotation] == ca.digest {
		return nil
	}
	if ptr.Deref(found.Immutable, false) {
		// Its deletion is an event, after which it is made anew.
		return configMaps.Delete(ctx, ConfigMap, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(found.UID))})
	}
	_, err = configMaps.Update(ctx, right(found, ca.pem), metav1.UpdateOptions{})
	return err
}

// right returns the ConfigMap as it has to be.
func right(m *corev1.ConfigMap, ca []byte) *corev1.ConfigMap {
	m = m.DeepCopy()
	m.Name = ConfigMap
	m.Data = map[string]string{dataKey: string(ca)}
	if m.Annotations[descriptionAnnotation] == "" {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, descriptionAnnotation, description)
	}
	return m
}

const (
	// perSecond bounds the writes of a sweep.
	perSecond = 100
	// timeout bounds one of them.
	timeout = 30 * time.Second
	// again is when namespaces are looked through again after a write has failed.
	again = 30 * time.Second
)

func newLimit() flowcontrol.RateLimiter { return flowcontrol.NewTokenBucketRateLimiter(perSecond, 1) }

// sweeper looks through all namespaces, at the start and whenever the CA has changed.
// It writes by itself, one after the other, and not by the queue: new namespaces do
// not wait for old ones.
type sweeper struct {
	*reconciler
	namespaces func() []*corev1.Namespace
	// wait waits for the next write.
	wait func(ctx context.Context) error
}

func sweeping(s *sweeper) reconcile.Source[client.Key] {
	return func(ctx context.Context, _ reconcile.Queue[client.Key]) (func(), error) {
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.run(ctx)
		}()
		return func() {
			cancel()
			<-ended
		}, nil
	}
}

func (s *sweeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		ca := s.ca.current.Load()
		var retry <-chan time.Time
		if failed := s.sweep(ctx); failed > 0 {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
		case <-ca.replaced:
		case <-retry:
		}
	}
}

// sweep mends what is to be mended, and returns of how many namespaces it could not.
func (s *sweeper) sweep(ctx context.Context) (failed int) {
	logger := klog.FromContext(ctx)
	written, start := 0, time.Now()
	for _, namespace := range s.namespaces() {
		key := client.KeyOf(namespace)
		missing, wrong := s.look(key)
		if !missing && !wrong {
			continue
		}
		if s.wait(ctx) != nil {
			return failed // the end
		}
		switch err := s.write(ctx, key, missing, wrong); {
		case err == nil, apierrors.IsConflict(err): // of which an event tells
			written++
		case ctx.Err() != nil:
			return failed
		default:
			failed++
			logger.V(2).Info("A namespace has not got the root CA, trying again", "namespace", key.String(), "reason", err.Error())
		}
	}
	if written > 0 || failed > 0 {
		logger.Info("Namespaces have got the root CA", "namespaces", written, "failed", failed, "seconds", int(time.Since(start).Seconds()))
	}
	return failed
}

func (s *sweeper) write(ctx context.Context, key client.Key, missing, wrong bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.mend(ctx, key, missing, wrong)
}
