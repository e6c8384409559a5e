// Package rootca writes the CA for the external address into every namespace of every logical cluster of a shard. It is
// in the ConfigMap kube-root-ca.crt, where Kubernetes clients expect it.
//
// Changes of namespaces and of these ConfigMaps are processed immediately. When the controller starts or the CA changes,
// all namespaces of the shard are checked at a limited rate.
package rootca

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// Name is the name of the controller.
	Name = "rootca"
	// ConfigMap is the name of the ConfigMap in each namespace.
	ConfigMap = "kube-root-ca.crt"

	// descriptionAnnotation is the description of the ConfigMap kube-root-ca.crt, as in Kubernetes.
	//
	//reference:metadata ConfigMap | root CA controller
	descriptionAnnotation = "kubernetes.io/description"
	description           = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."

	// digestAnnotation contains the digest of the data. It exists only in the informer.
	//
	//reference:none
	digestAnnotation = "digest"
	// maxBackoff is long because an exceeded quota may be permanent.
	maxBackoff = 5 * time.Minute
)

// NewInformer returns an informer for the ConfigMaps, which keeps only a digest of the content.
func NewInformer(local *client.Factory) *client.Informer[*corev1.ConfigMap] {
	return kinds.ConfigMaps.Informer(local.Wildcard(), client.InformerOptions[*corev1.ConfigMap]{
		Name:          "configmaps " + ConfigMap,
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, ConfigMap).String(), Transform: slim,
	})
}

func slim(m *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	slimmed := &corev1.ConfigMap{ObjectMeta: tenancy.Slim(&m.ObjectMeta)}
	if m.Annotations[descriptionAnnotation] != "" {
		slimmed.Annotations[digestAnnotation] = digest(m.Data)
	}
	return slimmed, nil
}

// NewRootCAController returns the controller. Its keys are namespaces of the shard. configMaps is the result of NewInformer.
func NewRootCAController(local *client.Factory, namespaces *client.Informer[*corev1.Namespace], configMaps *client.Informer[*corev1.ConfigMap], ca *File) *reconcile.Controller[client.Key] {
	r := &configMapReconciler{
		ca: ca, namespace: namespaces.Lister().Get, configMap: configMaps.Lister().Get,
		at: func(key client.Key) configMapClient {
			return kinds.ConfigMaps.InNamespace(local.Cluster(key.Cluster.Path()), key.Name)
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile, MaxBackoff: maxBackoff,
		Sources: []reconcile.Source[client.Key]{
			changes(namespaces, func(ns *corev1.Namespace) client.Key { return client.KeyOf(ns) }),
			changes(configMaps, func(m *corev1.ConfigMap) client.Key {
				key := client.KeyOf(m)
				return client.Key{Cluster: key.Cluster, Name: key.Namespace}
			}),
			// This must be the last source, so that no change is missed.
			(&sweeper{configMapReconciler: r, namespaces: func() []*corev1.Namespace { return namespaces.Lister().List(nil) }, wait: newRateLimiter().Wait}).source,
		},
	})
}

// changes enqueues added, changed and deleted objects, but not those that exist initially.
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

type configMapClient interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error)
	Create(ctx context.Context, obj *corev1.ConfigMap, opts metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, obj *corev1.ConfigMap, opts metav1.UpdateOptions) (*corev1.ConfigMap, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

type configMapReconciler struct {
	ca        *File
	namespace func(key client.Key) (*corev1.Namespace, error)
	configMap func(key client.Key) (*corev1.ConfigMap, error)
	at        func(namespace client.Key) configMapClient
}

func (r *configMapReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	missing, wrong := r.inspect(key)
	return reconcile.Result{}, r.repair(ctx, key, missing, wrong)
}

// inspect reports whether the ConfigMap is missing or wrong according to the informers.
func (r *configMapReconciler) inspect(key client.Key) (missing, wrong bool) {
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

func (r *configMapReconciler) repair(ctx context.Context, key client.Key, missing, wrong bool) error {
	var err error
	switch {
	case missing:
		_, err = r.at(key).Create(ctx, desired(&corev1.ConfigMap{}, r.ca.Content()), metav1.CreateOptions{})
	case wrong:
		err = r.replace(ctx, r.at(key))
	}
	switch {
	case err == nil, apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // an event reports its creation, or it or the namespace was deleted
	case apierrors.IsConflict(err):
		return err
	default:
		return fmt.Errorf("writing the ConfigMap %s of namespace %s: %w", ConfigMap, key, err)
	}
}

func (r *configMapReconciler) replace(ctx context.Context, configMaps configMapClient) error {
	ca := r.ca.current.Load()
	found, err := configMaps.Get(ctx, ConfigMap, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if slimmed, _ := slim(found); slimmed.Annotations[digestAnnotation] == ca.digest {
		return nil
	}
	if ptr.Deref(found.Immutable, false) {
		// It is recreated after the deletion event.
		return configMaps.Delete(ctx, ConfigMap, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(found.UID))})
	}
	_, err = configMaps.Update(ctx, desired(found, ca.pem), metav1.UpdateOptions{})
	return err
}

func desired(m *corev1.ConfigMap, ca []byte) *corev1.ConfigMap {
	m = m.DeepCopy()
	m.Name = ConfigMap
	m.Data = map[string]string{dataKey: string(ca)}
	if m.Annotations[descriptionAnnotation] == "" {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, descriptionAnnotation, description)
	}
	return m
}

const (
	// perSecond limits the writes of a sweep, and timeout the duration of each of them.
	perSecond = 100
	timeout   = 30 * time.Second
	// retryDelay is the delay before the next sweep after a failed write.
	retryDelay = 30 * time.Second
)

func newRateLimiter() flowcontrol.RateLimiter {
	return flowcontrol.NewTokenBucketRateLimiter(perSecond, 1)
}

// sweeper writes the ConfigMaps of all namespaces, at the start and when the CA changes. It does not use the queue, so that
// new namespaces do not wait for existing ones.
type sweeper struct {
	*configMapReconciler
	namespaces func() []*corev1.Namespace
	wait       func(ctx context.Context) error // for the rate limit
}

func (s *sweeper) source(ctx context.Context, _ reconcile.Queue[client.Key]) (func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}, nil
}

func (s *sweeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		ca := s.ca.current.Load()
		var retry <-chan time.Time
		if failed := s.sweep(ctx); failed > 0 {
			retry = time.After(retryDelay)
		}
		select {
		case <-ctx.Done():
		case <-ca.replaced:
		case <-retry:
		}
	}
}

func (s *sweeper) sweep(ctx context.Context) (failed int) {
	logger := klog.FromContext(ctx)
	written, start := 0, time.Now()
	for _, namespace := range s.namespaces() {
		key := client.KeyOf(namespace)
		missing, wrong := s.inspect(key)
		if !missing && !wrong {
			continue
		}
		if s.wait(ctx) != nil {
			return failed // stopped
		}
		switch err := s.write(ctx, key, missing, wrong); {
		case err == nil, apierrors.IsConflict(err): // a conflict is followed by an event
			written++
		case ctx.Err() != nil:
			return failed
		default:
			failed++
			logger.V(2).Info("Failed to write the root CA to a namespace, retrying", "namespace", key.String(), "reason", err.Error())
		}
	}
	if written > 0 || failed > 0 {
		logger.Info("Wrote the root CA to namespaces", "namespaces", written, "failed", failed, "seconds", int(time.Since(start).Seconds()))
	}
	return failed
}

func (s *sweeper) write(ctx context.Context, key client.Key, missing, wrong bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return s.repair(ctx, key, missing, wrong)
}

const dataKey = "ca.crt"

// pollInterval is a fallback for missing file system events, as in kube-apiserver.
const pollInterval = time.Minute

// File is a PEM file with certificates. If it changes and is invalid, the previous content remains in use.
type File struct {
	path    string
	current atomic.Pointer[bundle]
}

type bundle struct {
	pem      []byte
	digest   string        // of a ConfigMap with this content
	replaced chan struct{} // closed when the content changes
}

// OpenFile reads the file. It returns an error if the file does not contain only certificates.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	_, err := f.load()
	return f, err
}

// Content returns the current content.
func (f *File) Content() []byte { return f.current.Load().pem }

// Run watches the file until ctx is done.
func (f *File) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("file", f.path)
	filesystem.WatchUntil(ctx, pollInterval, f.path, func() {
		switch changed, err := f.load(); {
		case err != nil:
			logger.Error(err, "Failed to load the root CA, using the previous content")
		case changed:
			logger.Info("Reloaded the root CA")
		}
	}, nil)
	return nil
}

func (f *File) load() (changed bool, err error) {
	content, err := os.ReadFile(f.path)
	if err != nil {
		return false, err
	}
	old := f.current.Load()
	if old != nil && bytes.Equal(old.pem, content) {
		return false, nil
	}
	if err := check(content); err != nil {
		return false, fmt.Errorf("%s: %w", f.path, err)
	}
	f.current.Store(&bundle{pem: content, digest: digest(map[string]string{dataKey: string(content)}), replaced: make(chan struct{})})
	if old != nil {
		close(old.replaced)
	}
	return true, nil
}

func digest(data map[string]string) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(data)) {
		_, _ = fmt.Fprintf(h, "%d %s %d %s ", len(key), key, len(data[key]), data[key])
	}
	return string(h.Sum(nil))
}

// check rejects files with other content than certificates, because it would be visible to all tenants, e.g. a private key.
func check(content []byte) error {
	found := false
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("it contains a %s, but must contain only certificates, because all tenants can read it", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("it contains an invalid certificate: %w", err)
		}
		found = true
	}
	if !found {
		return errors.New("it contains no PEM certificate")
	}
	return nil
}
