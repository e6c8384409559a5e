package percluster

import (
	"github.com/kcp-dev/logicalcluster/v3"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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
)

// Factory is an informer factory for upstream's plugins that returns the objects of one logical cluster from
// informers of all logical clusters. It runs nothing. Methods that upstream's plugins do not use are not
// implemented and panic.
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
	return registrationGroup{f: f}
}

type coreV1 struct {
	coreinformers.Interface
	f *Factory
}

func (v coreV1) V1() coreinformers.Interface { return v }

func (v coreV1) Namespaces() coreinformers.TypedNamespaceInformer {
	return coreinformers.ToTypedNamespaceInformer(v.f.Namespaces)
}

type registrationGroup struct {
	admissionregistration.Interface
	f *Factory
}

func (g registrationGroup) V1() admissionregistrationinformers.Interface {
	return registrationV1{f: g.f}
}

type registrationV1 struct {
	admissionregistrationinformers.Interface
	f *Factory
}

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
	return registration{}, nil
}

type registration struct {
	cache.ResourceEventHandlerRegistration
}

func (registration) HasSynced() bool { return true }

// NamespaceLister lists the namespaces of one logical cluster.
type NamespaceLister struct {
	informer *client.Informer[*corev1.Namespace]
	cluster  logicalcluster.Name
}

var (
	_ corelisters.NamespaceLister     = NamespaceLister{}
	_ coreinformers.NamespaceInformer = NamespaceLister{}
)

// NewNamespaceLister returns the lister of one logical cluster.
func NewNamespaceLister(informer *client.Informer[*corev1.Namespace], cluster logicalcluster.Name) NamespaceLister {
	return NamespaceLister{informer: informer, cluster: cluster}
}

// Get implements corelisters.NamespaceLister.
func (l NamespaceLister) Get(name string) (*corev1.Namespace, error) {
	return l.informer.Lister().Cluster(l.cluster).Get("", name)
}

// List implements corelisters.NamespaceLister.
func (l NamespaceLister) List(selector labels.Selector) ([]*corev1.Namespace, error) {
	return l.informer.Lister().Cluster(l.cluster).List(selector), nil
}

// Informer implements coreinformers.NamespaceInformer. Callers must wait for the namespace informer before.
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
