// Package percluster contains the state of admission plugins per logical cluster, and adapters for upstream's
// plugins, which expect a single cluster.
//
// A logical cluster without objects of a kind must have no entry, so that a request in it costs one map lookup.
package percluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	admissionregistrationinformers "k8s.io/client-go/informers/admissionregistration/v1"
	"k8s.io/client-go/informers/core"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	admissionregistrationlisters "k8s.io/client-go/listers/admissionregistration/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
)

type (
	// Mutator is a mutating plugin that consists of a function.
	Mutator struct {
		*admission.Handler
		Admits
	}
	// Validator is a validating plugin that consists of a function.
	Validator struct {
		*admission.Handler
		Validates
	}
	// Plugin is a mutating and validating plugin that consists of functions.
	Plugin struct {
		*admission.Handler
		Admits
		Validates
	}
)

var (
	_ admission.MutationInterface   = Plugin{}
	_ admission.ValidationInterface = Plugin{}
)

// Admits is the function of a mutating plugin.
type Admits func(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error

// Admit implements admission.MutationInterface.
func (f Admits) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return f(ctx, a, o)
}

// Validates is the function of a validating plugin.
type Validates func(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error

// Validate implements admission.ValidationInterface.
func (f Validates) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return f(ctx, a, o)
}

// Invalid returns the error (422) for a write with validation errors, or nil.
func Invalid(a admission.Attributes, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return request.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
}

// Config configures plugins for webhooks and policies.
type Config struct {
	// Clients reaches the server itself as system:masters.
	Clients *client.Factory
	// Namespaces of all logical clusters, for namespace selectors.
	Namespaces *client.Informer[*corev1.Namespace]
	// Local reports whether a logical cluster is on this shard.
	Local func(cluster logicalcluster.Name) bool
	// Authorizer evaluates expressions, in the logical cluster of the context.
	Authorizer authorizer.UnconditionalAuthorizer
	// Excluded resources bypass webhooks and policies, e.g. access reviews.
	Excluded []schema.GroupResource
}

// Build derives a value from the webhooks or policies of a logical cluster. If retry is positive, the value is
// rebuilt on the first access after that time.
type Build[D any] func(cluster logicalcluster.Name) (derived *D, retry time.Duration, err error)

// Cache contains a value derived from the webhooks or policies of each logical cluster that has any. A value is
// built on first access and again after a change. It is immutable, so a request may keep using it.
type Cache[D any] struct {
	build Build[D]
	ready *Prerequisites

	mu      sync.RWMutex
	entries map[logicalcluster.Name]*entry[D]
}

type entry[D any] struct {
	mu      sync.Mutex
	built   bool
	derived *D
	err     error
	retry   time.Time
}

// NewCache returns an empty Cache; call Follow to fill it.
func NewCache[D any](build Build[D], ready *Prerequisites) *Cache[D] {
	return &Cache[D]{build: build, ready: ready, entries: map[logicalcluster.Name]*entry[D]{}}
}

// For returns the value that applies to a write, or nil, and the logical clusters that Clusters returns.
func (c *Cache[D]) For(ctx context.Context, a admission.Attributes) (derived *D, source, in logicalcluster.Name, err error) {
	if IsServer(a.GetUserInfo()) {
		return nil, "", "", nil
	}
	if source, in, err = Clusters(ctx); err != nil {
		return nil, "", "", apierrors.NewInternalError(err)
	}
	if err = c.ready.Wait(ctx, a, source, in); err != nil {
		return nil, "", "", err
	}
	c.mu.RLock()
	e := c.entries[source]
	c.mu.RUnlock()
	if e != nil {
		if derived, err = e.value(c.build, source); err != nil {
			return nil, "", "", apierrors.NewInternalError(err)
		}
	}
	return derived, source, in, nil
}

func (e *entry[D]) value(build Build[D], cluster logicalcluster.Name) (*D, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.built || !e.retry.IsZero() && time.Now().After(e.retry) {
		var retry time.Duration
		e.derived, retry, e.err = build(cluster)
		e.built, e.retry = true, time.Time{}
		if retry > 0 {
			e.retry = time.Now().Add(retry)
		}
	}
	return e.derived, e.err
}

func (c *Cache[D]) changed(cluster logicalcluster.Name, empty bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if empty {
		delete(c.entries, cluster)
		return
	}
	c.entries[cluster] = &entry[D]{}
}

// Follow rebuilds the entries of a Cache when objects of the informer change, and then calls the functions in
// then. empty reports whether a logical cluster has no objects in any of the informers of the Cache.
func Follow[T client.Object, D any](c *Cache[D], informer *replicas.Dual[T], empty func(cluster logicalcluster.Name) bool, then ...func(logicalcluster.Name)) {
	changed := func(obj T, deleted bool) {
		cluster := logicalcluster.From(obj)
		c.changed(cluster, deleted && empty(cluster))
		for _, f := range then {
			f(cluster)
		}
	}
	informer.AddEventHandler(client.Handler[T]{
		OnAdd:    func(obj T, _ bool) { changed(obj, false) },
		OnUpdate: func(_, obj T) { changed(obj, false) },
		OnDelete: func(last T, _ bool) { changed(last, true) },
	})
}

// Clusters returns the logical cluster whose webhooks and policies apply to a write, and the logical cluster
// that is written to. They differ for bound APIs, to which the webhooks and policies of the provider apply.
func Clusters(ctx context.Context) (source, in logicalcluster.Name, err error) {
	if in, err = request.ClusterNameFrom(ctx); err != nil {
		return "", "", err
	}
	if provider := request.ProviderFrom(ctx); provider != "" {
		return provider, in, nil
	}
	return in, in, nil
}

// AnnotateCluster sets the annotation kcp.io/cluster on the object of a write until undo is called, because
// webhooks and policies of other logical clusters need it. Storage sets it on the stored object anyway.
func AnnotateCluster(a admission.Attributes, in logicalcluster.Name) (undo func()) {
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return func() {} // e.g. a deletion, whose old object has the annotation
	}
	set := func(value string, ok bool) (before string, had bool) {
		annotations := object.GetAnnotations()
		before, had = annotations[logicalcluster.AnnotationKey]
		switch {
		case ok && annotations == nil:
			annotations = map[string]string{logicalcluster.AnnotationKey: value}
		case ok:
			annotations[logicalcluster.AnnotationKey] = value
		default:
			delete(annotations, logicalcluster.AnnotationKey)
		}
		if len(annotations) == 0 {
			annotations = nil
		}
		object.SetAnnotations(annotations)
		return before, had
	}
	before, had := set(in.String(), true)
	return func() { set(before, had) }
}

// Pausing returns interfaces that release the seat of the request of ctx (request.Pause) while a custom
// resource is converted. Conversion may call a slow webhook, and upstream passes no context.
func Pausing(ctx context.Context, o admission.ObjectInterfaces) admission.ObjectInterfaces {
	return pausing{o, ctx}
}

type pausing struct {
	admission.ObjectInterfaces
	ctx context.Context //nolint:containedctx // of the one request; the interface has none
}

func (p pausing) GetObjectConvertor() runtime.ObjectConvertor {
	return convertor{p.ObjectInterfaces.GetObjectConvertor(), p.ctx}
}

type convertor struct {
	runtime.ObjectConvertor
	ctx context.Context //nolint:containedctx // as above
}

func (c convertor) Convert(in, out, meta any) error {
	if _, custom := in.(*unstructured.Unstructured); custom {
		defer request.Pause(c.ctx)()
	}
	return c.ObjectConvertor.Convert(in, out, meta)
}

// IsServer reports whether a request is from the server itself. Webhooks and policies do not apply to it, because its
// controllers serve all logical clusters with few workers. A webhook that does not respond would block the workers
// for other logical clusters. A webhook that denies all requests would prevent the deletion of namespaces and
// workspaces.
func IsServer(u user.Info) bool { return u != nil && u.GetName() == user.APIServerUser }

// readyTimeout is the time that a write waits for informers after a server start, as in upstream's plugins.
const readyTimeout = 10 * time.Second

// Ready are informers that must be synced before a write is admitted.
type Ready []client.Runner

// Wait waits until all informers have synced. After a timeout it returns an error that clients retry, because
// a denial would be final.
func (r Ready) Wait(ctx context.Context) error {
	for _, informer := range r {
		if informer.HasSynced() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		err := informer.WaitForSync(ctx)
		cancel()
		if err != nil {
			return request.Unavailable("not yet ready to handle request")
		}
	}
	return nil
}

// Objects are admission configuration of all logical clusters, including replicas from other shards (replicas.Dual).
type Objects interface {
	client.Runner
	// Read returns an error until the objects of all other shards have been read.
	Read() error
}

// Prerequisites are the informers and replicas that must be complete before a write is admitted.
type Prerequisites struct {
	ready Ready
	hooks []Objects
	local func(cluster logicalcluster.Name) bool
}

// NewPrerequisites returns Prerequisites for namespaces and hooks. local reports whether a logical cluster is on this
// shard.
func NewPrerequisites(namespaces client.Runner, local func(cluster logicalcluster.Name) bool, hooks ...Objects) *Prerequisites {
	p := &Prerequisites{ready: Ready{namespaces}, hooks: hooks, local: local}
	for _, h := range hooks {
		p.ready = append(p.ready, h)
	}
	return p
}

// Wait waits like Ready.Wait. If the configuration of another shard is incomplete, it does not wait, but
// returns an error that clients retry.
func (p *Prerequisites) Wait(ctx context.Context, a admission.Attributes, source, in logicalcluster.Name) error {
	if err := p.ready.Wait(ctx); err != nil || source == in || p.local(source) {
		return err
	}
	for _, hooks := range p.hooks {
		if err := hooks.Read(); err != nil {
			return apierrors.NewTooManyRequests(fmt.Sprintf("the webhooks and policies of the provider of %s have not been read yet, try again: %v", a.GetResource().GroupResource(), err), 1)
		}
	}
	return nil
}

// Factory is an informer factory for upstream's plugins that returns the objects of one logical cluster from informers
// of all logical clusters. It runs nothing. Methods that upstream's plugins do not use are not implemented and panic.
type Factory struct {
	informers.SharedInformerFactory

	Namespaces         NamespaceLister
	MutatingWebhooks   []*admissionregistrationv1.MutatingWebhookConfiguration
	ValidatingWebhooks []*admissionregistrationv1.ValidatingWebhookConfiguration
}

// Core implements informers.SharedInformerFactory.
func (f *Factory) Core() core.Interface { return coreV1{f: f} }

// Admissionregistration implements informers.SharedInformerFactory.
func (f *Factory) Admissionregistration() admissionregistration.Interface {
	return registrationV1{f: f}
}

type coreV1 struct {
	coreinformers.Interface
	f *Factory
}

func (v coreV1) V1() coreinformers.Interface { return v }

func (v coreV1) Namespaces() coreinformers.TypedNamespaceInformer {
	return coreinformers.ToTypedNamespaceInformer(v.f.Namespaces)
}

type registrationGroup = admissionregistration.Interface

type registrationV1 struct {
	registrationGroup
	admissionregistrationinformers.Interface
	f *Factory
}

func (v registrationV1) V1() admissionregistrationinformers.Interface { return v }

func (v registrationV1) MutatingWebhookConfigurations() admissionregistrationinformers.TypedMutatingWebhookConfigurationInformer {
	return admissionregistrationinformers.ToTypedMutatingWebhookConfigurationInformer(
		fixed[admissionregistrationlisters.MutatingWebhookConfigurationLister]{admissionregistrationlisters.NewMutatingWebhookConfigurationLister(indexerOf(v.f.MutatingWebhooks))})
}

func (v registrationV1) ValidatingWebhookConfigurations() admissionregistrationinformers.TypedValidatingWebhookConfigurationInformer {
	return admissionregistrationinformers.ToTypedValidatingWebhookConfigurationInformer(
		fixed[admissionregistrationlisters.ValidatingWebhookConfigurationLister]{admissionregistrationlisters.NewValidatingWebhookConfigurationLister(indexerOf(v.f.ValidatingWebhooks))})
}

// fixed is a lister whose content does not change, as an informer.
type fixed[L any] struct{ lister L }

func (fixed[L]) Informer() cache.SharedIndexInformer { return Synced }

func (f fixed[L]) Lister() L { return f.lister }

func indexerOf[T any](all []T) cache.Indexer {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for _, obj := range all {
		utilruntime.Must(indexer.Add(obj)) // they have metadata
	}
	return indexer
}

// Synced is a synced informer without events. It is used with listers whose content does not change.
var Synced cache.SharedIndexInformer = synced{}

type synced struct{ cache.SharedIndexInformer }

func (synced) HasSynced() bool { return true }

func (synced) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return Synced, nil
}

// NamespaceLister returns the namespaces of one logical cluster. Callers must wait for the namespace informer before.
type NamespaceLister struct {
	corelisters.NamespaceLister
	informer *client.Informer[*corev1.Namespace]
	cluster  logicalcluster.Name
}

// NewNamespaceLister returns the lister of one logical cluster.
func NewNamespaceLister(informer *client.Informer[*corev1.Namespace], cluster logicalcluster.Name) NamespaceLister {
	return NamespaceLister{informer: informer, cluster: cluster}
}

// Get implements corelisters.NamespaceLister.
func (l NamespaceLister) Get(name string) (*corev1.Namespace, error) {
	return l.informer.Lister().Cluster(l.cluster).Get("", name)
}

// Informer implements coreinformers.NamespaceInformer.
func (NamespaceLister) Informer() cache.SharedIndexInformer { return Synced }

// Lister implements coreinformers.NamespaceInformer.
func (l NamespaceLister) Lister() corelisters.NamespaceLister { return l }

type clientset struct {
	kubernetes.Interface
	clients *client.Factory
	cluster logicalcluster.Name
}

// NewClientset returns a client set for the namespaces of one logical cluster. Upstream's plugins use it for
// namespaces that the informer does not have yet.
func NewClientset(clients *client.Factory, cluster logicalcluster.Name) kubernetes.Interface {
	return clientset{clients: clients, cluster: cluster}
}

func (c clientset) CoreV1() typedcorev1.CoreV1Interface {
	core, err := typedcorev1.NewForConfigAndClient(c.clients.Cluster(c.cluster.Path()).Config(), c.clients.HTTPClient())
	utilruntime.Must(err) // client.NewFactory has parsed the host, and a logical cluster's path is escaped
	return core
}
