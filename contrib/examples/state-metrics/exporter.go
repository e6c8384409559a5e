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

// defaultKinds are what is counted unless --resources says otherwise.
const defaultKinds = "logicalclusters.v1alpha1.core.kcp.io=LogicalCluster," +
	"workspaces.v1alpha1.tenancy.kcp.io=Workspace," +
	"apibindings.v1alpha2.apis.kcp.io=APIBinding," +
	"apiexports.v1alpha2.apis.kcp.io=APIExport," +
	"namespaces.v1=Namespace"

// object is what is read of an object of any kind; all else is left over as it is decoded.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// objects is a list of them.
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

// tenants leaves out the system's own logical clusters: each shard has some, of the same names.
func tenants(o *object) bool { return !strings.HasPrefix(logicalcluster.From(o).String(), "system:") }

// kept returns what is kept of an object: some 500 bytes.
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

// phase returns the phase of an object; Deleting, whatever it says, once it is being deleted.
func (o *object) phase() string {
	if o.DeletionTimestamp != nil {
		return "Deleting"
	}
	return o.Status.Phase
}

// kind is a resource whose objects are counted, and, if info, have series of their own.
type kind struct {
	schema.GroupVersionResource

	kind string
	info bool
}

// parseKinds reads the flags --resources and --info.
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
			return nil, fmt.Errorf("--resources has %q: write <resource>.<version>[.<group>]=<Kind>, such as namespaces.v1=Namespace", text)
		}
		if slices.ContainsFunc(all, func(o kind) bool { return o.GroupResource() == k.GroupResource() }) {
			return nil, fmt.Errorf("--resources has %s twice", k.GroupResource())
		}
		k.info = single[k.GroupResource().String()]
		delete(single, k.GroupResource().String())
		all = append(all, k)
	}
	for resource := range single {
		return nil, fmt.Errorf("--info has %s, and --resources has not", resource)
	}
	if len(all) == 0 {
		return nil, errors.New("--resources is empty")
	}
	return all, nil
}

func isComma(r rune) bool { return r == ',' }

// member is what is asked of a ring.Ring.
type member interface {
	Ranges() (owned, coming client.Ranges)
	Changed() <-chan struct{}
	LoadedRanges() client.RangeSource
	Status() ring.Status
}

// exporter exports the objects that the ring gives to this replica, as they are in informers:
// there is nothing else to keep, and what moves away is not exported from then on.
type exporter struct {
	ring      member
	limit     int
	views     []view
	informers client.Group

	objects, info, left *prometheus.Desc
}

// view has the objects of a kind that this replica has, or is about to have.
type view struct {
	kind

	informer *client.Informer[*object]
}

func newExporter(replicas member, limit int) *exporter {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("shardplane_state_"+name, help, append([]string{"resource"}, labels...), nil)
	}
	return &exporter{
		ring: replicas, limit: limit,
		objects: desc("objects", "Objects of a logical cluster in a phase, that this replica has: sum over replicas. Those of no logical cluster are of all that have no series.", "logical_cluster", "phase"),
		info:    desc("object_info", "1 for each object.", "logical_cluster", "namespace", "name", "path", "phase"),
		left:    desc("left_out_series", "Series that there are not, since there would be more than --series.", "metric"),
	}
}

// add has the objects of a kind exported.
func (e *exporter) add(k kind, scope client.Scope) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(k.GroupVersion().WithKind(k.kind), &object{})
	scheme.AddKnownTypeWithName(k.GroupVersion().WithKind(k.kind+"List"), &objects{})
	resource := client.DefineResource[object, objects](k.GroupVersion(), k.Resource, client.WithScheme(scheme))
	informer := resource.Informer(scope, client.InformerOptions[*object]{Ranges: e.ring.LoadedRanges(), Keep: tenants, Transform: kept, Name: k.GroupResource().String()})
	e.views = append(e.views, view{k, informer})
	e.informers.Add(informer)
}

// ready returns nil when this replica exports its part.
func (e *exporter) ready() error {
	if s := e.ring.Status(); s.Epoch == 0 || s.Isolated {
		return errors.New("ring: " + s.Waits)
	}
	for _, v := range e.views {
		if !v.informer.HasSynced() {
			return fmt.Errorf("%s are not read yet: %w", v.informer.Name(), v.informer.LastError())
		}
	}
	return nil
}

// Describe implements prometheus.Collector.
func (e *exporter) Describe(out chan<- *prometheus.Desc) {
	out <- e.objects
	out <- e.info
	out <- e.left
}

// Collect implements prometheus.Collector.
func (e *exporter) Collect(out chan<- prometheus.Metric) {
	for {
		changed := e.ring.Changed()
		owned, _ := e.ring.Ranges()
		var all []prometheus.Metric
		for _, v := range e.views {
			// What is about to come is in the informer, and another replica's yet.
			is := slices.DeleteFunc(v.informer.Lister().List(nil), func(o *object) bool { return !owned.Contains(o) })
			all = e.series(all, v.kind, is)
		}
		select {
		case <-changed: // What has gone meanwhile is another replica's now.
		default:
			for _, m := range all {
				out <- m
			}
			return
		}
	}
}

// series are the labels of a metric, after the resource.
type series [5]string

// series appends the metrics of the objects of a kind.
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
	emit(e.left, len(rest), "objects")
	shown, rest = limited(infos, e.limit)
	for _, s := range shown {
		emit(e.info, 1, s[:]...)
	}
	emit(e.left, len(rest), "object_info")
	return all
}

// limited divides series into those that are exported, up to a limit, and the rest. They are the
// same ones each time, as long as there are no others.
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
