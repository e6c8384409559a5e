package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
)

// defaultKinds is the default of --resources.
const defaultKinds = "logicalclusters.v1alpha1.core.kcp.io=LogicalCluster," +
	"workspaces.v1alpha1.tenancy.kcp.io=Workspace," +
	"apibindings.v1alpha2.apis.kcp.io=APIBinding," +
	"apiexports.v1alpha2.apis.kcp.io=APIExport," +
	"namespaces.v1=Namespace"

// object contains the fields that are decoded from objects of any kind.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// objects is a list of objects.
type objects struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []object `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (o *object) DeepCopyObject() runtime.Object {
	c := *o
	o.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// DeepCopyObject implements runtime.Object.
func (l *objects) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = slices.Clone(l.Items)
	for i := range c.Items {
		l.Items[i].DeepCopyInto(&c.Items[i].ObjectMeta)
	}
	return &c
}

// tenants reports whether an object is outside of system logical clusters, which have the same names on each shard.
func tenants(o *object) bool { return !strings.HasPrefix(logicalcluster.From(o).String(), "system:") }

// kept returns the fields of an object that are kept, about 500 bytes.
func kept(o *object) (*object, error) {
	k := &object{Status: o.Status, ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, DeletionTimestamp: o.DeletionTimestamp,
		Annotations: map[string]string{logicalcluster.AnnotationKey: o.Annotations[logicalcluster.AnnotationKey]},
	}}
	if path := o.Annotations[core.LogicalClusterPathAnnotationKey]; path != "" {
		k.Annotations[core.LogicalClusterPathAnnotationKey] = path
	}
	return k, nil
}

// phase returns the phase of an object, or Deleting if it is being deleted.
func (o *object) phase() string {
	if o.DeletionTimestamp != nil {
		return "Deleting"
	}
	return o.Status.Phase
}

// kind is a resource. Its objects are counted and, if info is set, exported as series.
type kind struct {
	schema.GroupVersionResource

	kind string
	info bool
}

// parseKinds parses the flags --resources and --info.
func parseKinds(counted, info string) ([]kind, error) {
	single := map[string]bool{}
	for _, resource := range strings.FieldsFunc(info, isComma) {
		single[resource] = true
	}
	var all []kind
	for _, text := range strings.FieldsFunc(counted, isComma) {
		name, of, _ := strings.Cut(text, "=")
		resource := append(strings.SplitN(name, ".", 3), "", "")
		k := kind{schema.GroupVersionResource{Resource: resource[0], Version: resource[1], Group: resource[2]}, of, false}
		if k.Resource == "" || k.Version == "" || k.kind == "" {
			return nil, fmt.Errorf("--resources contains %q, but must have the form <resource>.<version>[.<group>]=<Kind>, e.g. namespaces.v1=Namespace", text)
		}
		if slices.ContainsFunc(all, func(o kind) bool { return o.GroupResource() == k.GroupResource() }) {
			return nil, fmt.Errorf("--resources contains %s twice", k.GroupResource())
		}
		k.info = single[k.GroupResource().String()]
		delete(single, k.GroupResource().String())
		all = append(all, k)
	}
	for resource := range single {
		return nil, fmt.Errorf("--info contains %s, but --resources does not", resource)
	}
	if len(all) == 0 {
		return nil, errors.New("--resources is empty")
	}
	return all, nil
}

func isComma(r rune) bool { return r == ',' }

// member contains the used methods of ring.Ring.
type member interface {
	Ranges() (owned, coming client.Ranges)
	Changed() <-chan struct{}
	LoadedRanges() client.RangeSource
	Status() ring.Status
}

// exporter exports the objects in the informers that the ring assigns to this replica. It has no other state. If objects are assigned to
// another replica, they are no longer exported.
type exporter struct {
	ring      member
	limit     int
	sources   []source
	informers client.Group

	objects, info, omitted *prometheus.Desc
}

// source contains the objects of a kind that are assigned to this replica, or loaded before they are assigned.
type source struct {
	kind

	informer *client.Informer[*object]
}

func newExporter(replicas member, limit int) *exporter {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("shardplane_state_"+name, help, append([]string{"resource"}, labels...), nil)
	}
	return &exporter{
		ring: replicas, limit: limit,
		objects: desc("objects", "Objects of a logical cluster in a phase. Each replica exports its own objects. Without a logical cluster, it is the sum of all series above the limit.", "logical_cluster", "phase"),
		info:    desc("object_info", "1 for each object.", "logical_cluster", "namespace", "name", "path", "phase"),
		omitted: desc("left_out_series", "Series that are not exported because of the limit --series.", "metric"),
	}
}

// add adds a kind to the exported ones.
func (e *exporter) add(k kind, scope client.Scope) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(k.GroupVersion().WithKind(k.kind), &object{})
	scheme.AddKnownTypeWithName(k.GroupVersion().WithKind(k.kind+"List"), &objects{})
	resource := client.DefineResource[object, objects](k.GroupVersion(), k.Resource, client.WithScheme(scheme))
	informer := resource.Informer(scope, client.InformerOptions[*object]{Ranges: e.ring.LoadedRanges(), Keep: tenants, Transform: kept, Name: k.GroupResource().String()})
	e.sources = append(e.sources, source{k, informer})
	e.informers.Add(informer)
}

// ready returns nil if this replica exports its objects.
func (e *exporter) ready() error {
	if s := e.ring.Status(); s.Epoch == 0 || s.Isolated {
		return errors.New("ring: " + s.Waits)
	}
	for _, v := range e.sources {
		if !v.informer.HasSynced() {
			return fmt.Errorf("%s have not been read yet: %w", v.informer.Name(), v.informer.LastError())
		}
	}
	return nil
}

// Describe implements prometheus.Collector.
func (e *exporter) Describe(out chan<- *prometheus.Desc) {
	out <- e.objects
	out <- e.info
	out <- e.omitted
}

// Collect implements prometheus.Collector.
func (e *exporter) Collect(out chan<- prometheus.Metric) {
	for {
		changed := e.ring.Changed()
		owned, _ := e.ring.Ranges()
		var all []prometheus.Metric
		for _, v := range e.sources {
			// Objects that are not assigned yet are still exported by another replica.
			is := slices.DeleteFunc(v.informer.Lister().List(nil), func(o *object) bool { return !owned.Contains(o) })
			all = e.series(all, v.kind, is)
		}
		select {
		case <-changed: // another replica may already export some of the objects
		default:
			for _, m := range all {
				out <- m
			}
			return
		}
	}
}

// series contains the labels of a metric after the resource.
type series [5]string

// series appends the metrics for objects of a kind.
func (e *exporter) series(all []prometheus.Metric, k kind, of []*object) []prometheus.Metric {
	counts := map[series]int{}
	infos := map[series]int{}
	for _, o := range of {
		cluster := logicalcluster.From(o).String()
		counts[series{cluster, o.phase()}]++
		if k.info {
			infos[series{cluster, o.Namespace, o.Name, o.Annotations[core.LogicalClusterPathAnnotationKey], o.phase()}] = 1
		}
	}
	emit := func(desc *prometheus.Desc, value int, labels ...string) {
		all = append(all, prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), append([]string{k.GroupResource().String()}, labels...)...))
	}
	shown, rest := limited(counts, e.limit)
	for _, s := range rest {
		counts[series{"", s[1]}] += counts[s]
	}
	for _, s := range shown {
		emit(e.objects, counts[s], s[:2]...)
	}
	others := map[string]bool{}
	for _, s := range rest {
		if !others[s[1]] {
			others[s[1]] = true
			emit(e.objects, counts[series{"", s[1]}], "", s[1])
		}
	}
	emit(e.omitted, len(rest), "objects")
	shown, rest = limited(infos, e.limit)
	for _, s := range shown {
		emit(e.info, 1, s[:]...)
	}
	emit(e.omitted, len(rest), "object_info")
	return all
}

// limited returns the series up to a limit, and the rest. If the series do not change, the result is the same.
func limited(all map[series]int, limit int) (shown, rest []series) {
	for s := range all {
		shown = append(shown, s)
	}
	if len(shown) <= limit {
		return shown, nil
	}
	slices.SortFunc(shown, func(a, b series) int { return slices.Compare(a[:], b[:]) })
	return shown[:limit], shown[limit:]
}
