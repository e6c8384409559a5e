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
)

// syntheticLister is the lister and informer that the upstream handler believes
// to be the cluster's: it hands the handler the synthetic definition that was
// resolved for a request.
//
// The handler asks for "<resource>.<group>" without a context, so the request
// info that it sees carries a one-time key in place of its group. The lister
// uses the key up, puts back the group, or what stands for it in metrics, and
// returns the definition.
type syntheticLister struct {
	servingInfos                           prometheus.Counter
	listers.CustomResourceDefinitionLister // the methods that the handler does not call

	table *definitions.Table

	last   atomic.Uint64
	issued sync.Map // "<resource>.<one-time key>" to *oneTime

	// building is the schema for which the upstream handler makes serving info
	// at the moment. The handler asks for a definition by its synthetic name
	// only under its own lock, just before it asks for the storage.
	building atomic.Pointer[definitions.Schema]

	informer capturingInformer
}

var (
	_ informers.CustomResourceDefinitionInformer      = (*syntheticLister)(nil)
	_ listers.CustomResourceDefinitionLister          = (*syntheticLister)(nil)
	_ cache.SharedIndexInformer                       = (*capturingInformer)(nil)
	_ listers.CustomResourceDefinitionListerExpansion = (*syntheticLister)(nil)
)

// oneTime is what a one-time key is for.
type oneTime struct {
	info *genericapirequest.RequestInfo
	// resource is what info says once the key is used up.
	resource schema.GroupResource
	crd      *apiextensionsv1.CustomResourceDefinition
}

func newSyntheticLister(table *definitions.Table, servingInfos prometheus.Counter) *syntheticLister {
	return &syntheticLister{table: table, servingInfos: servingInfos}
}

// issue puts a one-time key for crd into info, which must be private to the
// request, and names resource once the key is used up. The returned function
// voids the key.
func (l *syntheticLister) issue(info *genericapirequest.RequestInfo, resource schema.GroupResource, crd *apiextensionsv1.CustomResourceDefinition) (void func()) {
	t := &oneTime{info: info, resource: resource, crd: crd}
	info.APIGroup = strconv.FormatUint(l.last.Add(1), 36)
	key := info.Resource + "." + info.APIGroup
	l.issued.Store(key, t)
	return func() { l.issued.Delete(key) }
}

// Get implements the lister for one-time keys and for names of synthetic definitions.
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

// List implements the lister: the definitions whose serving info is to be kept.
func (l *syntheticLister) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return l.table.Definitions(), nil
}

// Informer implements the informer.
func (l *syntheticLister) Informer() cache.SharedIndexInformer { return &l.informer }

// Lister implements the informer.
func (l *syntheticLister) Lister() listers.CustomResourceDefinitionLister { return l }

// removeDead makes the upstream handler drop the serving info of definitions
// that List no longer returns.
func (l *syntheticLister) removeDead() {
	l.informer.handler.OnDelete(nil)
}

// capturingInformer keeps the event handler of the upstream handler.
type capturingInformer struct {
	cache.SharedIndexInformer // the methods that the handler does not call
	handler                   cache.ResourceEventHandler
}

func (i *capturingInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handler = h
	return nil, nil
}
