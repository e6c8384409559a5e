package customresource

import (
	"strconv"
	"sync"
	"sync/atomic"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/cache"
)

// desk is the lister and informer that the upstream handler believes to be the
// cluster's: it hands the handler the synthetic definition that was resolved
// for a request.
//
// The handler asks for "<resource>.<group>" without a context, so the request
// info that it sees carries a one-time ticket in place of its group. The desk
// takes the ticket, puts back the group, or what stands for it in metrics, and
// returns the definition.
type desk struct {
	listers.CustomResourceDefinitionLister // the methods that the handler does not call

	table *schemaTable

	last    atomic.Uint64
	tickets sync.Map // "<resource>.<ticket>" to *ticket

	// building is the schema for which the upstream handler makes serving info
	// at the moment. The handler asks for a definition by its synthetic name
	// only under its own lock, just before it asks for the storage.
	building atomic.Pointer[Schema]

	informer capturingInformer
}

var (
	_ informers.CustomResourceDefinitionInformer      = (*desk)(nil)
	_ listers.CustomResourceDefinitionLister          = (*desk)(nil)
	_ cache.SharedIndexInformer                       = (*capturingInformer)(nil)
	_ listers.CustomResourceDefinitionListerExpansion = (*desk)(nil)
)

type ticket struct {
	info *genericapirequest.RequestInfo
	// resource is what info says once the ticket is taken.
	resource schema.GroupResource
	crd      *apiextensionsv1.CustomResourceDefinition
}

func newDesk(table *schemaTable) *desk { return &desk{table: table} }

// issue puts a ticket for crd into info, which must be private to the request.
// It is taken for resource. The returned function voids the ticket.
func (d *desk) issue(info *genericapirequest.RequestInfo, resource schema.GroupResource, crd *apiextensionsv1.CustomResourceDefinition) (void func()) {
	t := &ticket{info: info, resource: resource, crd: crd}
	info.APIGroup = strconv.FormatUint(d.last.Add(1), 36)
	key := info.Resource + "." + info.APIGroup
	d.tickets.Store(key, t)
	return func() { d.tickets.Delete(key) }
}

// Get implements the lister for tickets and for names of synthetic definitions.
func (d *desk) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	if v, ok := d.tickets.LoadAndDelete(name); ok {
		t, _ := v.(*ticket)
		t.info.APIGroup, t.info.Resource = t.resource.Group, t.resource.Resource
		return t.crd, nil
	}
	if s, ok := d.table.lookup(name); ok {
		d.building.Store(s)
		return s.crd, nil
	}
	return nil, apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), name)
}

// List implements the lister: the definitions whose serving info is to be kept.
func (d *desk) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return d.table.definitions(), nil
}

// Informer implements the informer.
func (d *desk) Informer() cache.SharedIndexInformer { return &d.informer }

// Lister implements the informer.
func (d *desk) Lister() listers.CustomResourceDefinitionLister { return d }

// removeDead makes the upstream handler drop the serving info of definitions
// that List no longer returns.
func (d *desk) removeDead() {
	d.informer.handler.OnDelete(nil)
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
