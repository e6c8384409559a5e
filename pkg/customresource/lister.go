package customresource

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/instruments"
)

// syntheticLister replaces the lister and informer of the upstream handler. It returns the synthetic
// definition that was resolved for a request.
//
// The handler requests "<resource>.<group>" without a context. Therefore the group in its request info is
// replaced by a one-time key. The lister invalidates the key, restores the group, or its name in metrics, and
// returns the definition.
type syntheticLister struct {
	servingInfos                           prometheus.Counter
	listers.CustomResourceDefinitionLister // methods that the handler does not call

	table *definitions.Table

	last   atomic.Uint64
	issued sync.Map // "<resource>.<one-time key>" to *oneTime

	// building is the schema for which the upstream handler is creating serving info. The handler requests a
	// synthetic name only under its own lock, immediately before it requests the storage.
	building atomic.Pointer[definitions.Schema]

	informer capturingInformer
}

var (
	_ informers.CustomResourceDefinitionInformer      = (*syntheticLister)(nil)
	_ listers.CustomResourceDefinitionLister          = (*syntheticLister)(nil)
	_ cache.SharedIndexInformer                       = (*capturingInformer)(nil)
	_ listers.CustomResourceDefinitionListerExpansion = (*syntheticLister)(nil)
)

type oneTime struct {
	info *genericapirequest.RequestInfo
	// resource replaces the key in info.
	resource schema.GroupResource
	crd      *apiextensionsv1.CustomResourceDefinition
}

// issue sets a one-time key for crd in info, which must be private to the request and will contain resource
// after the key is used. The returned function invalidates the key.
func (l *syntheticLister) issue(info *genericapirequest.RequestInfo, resource schema.GroupResource, crd *apiextensionsv1.CustomResourceDefinition) (void func()) {
	t := &oneTime{info: info, resource: resource, crd: crd}
	info.APIGroup = strconv.FormatUint(l.last.Add(1), 36)
	key := info.Resource + "." + info.APIGroup
	l.issued.Store(key, t)
	return func() { l.issued.Delete(key) }
}

func (l *syntheticLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	if v, ok := l.issued.LoadAndDelete(name); ok {
		t, _ := v.(*oneTime)
		t.info.APIGroup, t.info.Resource = t.resource.Group, t.resource.Resource
		return t.crd, nil
	}
	if s, ok := l.table.ByName(name); ok {
		l.building.Store(s)
		l.servingInfos.Inc()
		return s.CRD(), nil
	}
	return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), name)
}

// List implements the lister: the definitions with serving info to keep.
func (l *syntheticLister) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return l.table.Definitions(), nil
}

func (l *syntheticLister) Informer() cache.SharedIndexInformer { return &l.informer }

func (l *syntheticLister) Lister() listers.CustomResourceDefinitionLister { return l }

// removeDead makes the upstream handler remove the serving info of definitions that List does not return any
// more.
func (l *syntheticLister) removeDead() {
	l.informer.handler.OnDelete(nil)
}

// capturingInformer captures the event handler of the upstream handler.
type capturingInformer struct {
	cache.SharedIndexInformer // methods that the handler does not call
	handler                   cache.ResourceEventHandler
}

func (i *capturingInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handler = h
	return nil, nil
}

func newSyntheticLister(table *definitions.Table, registerer prometheus.Registerer) *syntheticLister {
	return &syntheticLister{table: table, servingInfos: instruments.NewCounter(registerer, "shardplane_custom_resources_serving_infos_total",
		"Serving infos that were created. The serving info of a schema is kept while the schema is used.")}
}
