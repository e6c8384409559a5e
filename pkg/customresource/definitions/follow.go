package definitions

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Run keeps the index until ctx ends: it lists all definitions of the shard and
// follows the watch from there. Client-go's reflector would not do: it tells
// objects apart by name, and logical clusters share names.
func (o *Index) Run(ctx context.Context) {
	defer close(o.ended)
	pause := firstRetry
	for ctx.Err() == nil {
		err := o.list(ctx)
		for err == nil && ctx.Err() == nil {
			pause = firstRetry
			err = o.follow(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Reading definitions again", "reason", err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, lastRetry)
	}
}

// list replaces the index by what storage holds.
func (o *Index) list(ctx context.Context) error {
	obj, err := o.store.List(storeContext(ctx, request.Cluster{Wildcard: true}), &internalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing definitions: %w", err)
	}
	list, ok := obj.(*apiextensions.CustomResourceDefinitionList)
	if !ok {
		return fmt.Errorf("listing definitions gave a %T", obj)
	}
	revision, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("resource version %q of the list of definitions: %w", list.ResourceVersion, err)
	}
	type key struct {
		cluster logicalcluster.Name
		name    string
	}
	present := make(map[key]bool, len(list.Items))
	for i := range list.Items {
		crd := &list.Items[i]
		present[key{logicalcluster.From(crd), crd.Name}] = true
		o.upsert(ctx, crd)
	}

	o.mu.Lock()
	var gone []key
	for cluster, of := range o.clusters {
		for name := range of {
			if k := (key{cluster, name}); !present[k] {
				gone = append(gone, k)
			}
		}
	}
	o.mu.Unlock()
	for _, k := range gone {
		o.replace(k.cluster, k.name, nil)
	}
	o.advance(revision, true)
	return nil
}

// follow applies events from the index's revision on until the watch ends. An
// error means that the index must be listed anew.
func (o *Index) follow(ctx context.Context) error {
	o.mu.RLock()
	revision := o.revision
	o.mu.RUnlock()
	w, err := o.store.Watch(storeContext(ctx, request.Cluster{Wildcard: true}), &internalversion.ListOptions{
		ResourceVersion:     strconv.FormatUint(revision, 10),
		AllowWatchBookmarks: true,
	})
	if err != nil {
		return fmt.Errorf("watching definitions: %w", err)
	}
	defer w.Stop()
	events := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-w.ResultChan():
			switch {
			case ok:
				events++
				if err := o.apply(ctx, event); err != nil {
					return err
				}
			case events == 0:
				return errors.New("the watch of definitions ended at once")
			default:
				return nil
			}
		}
	}
}

// apply applies one event.
func (o *Index) apply(ctx context.Context, event watch.Event) error {
	if event.Type == watch.Error {
		return fmt.Errorf("watching definitions: %w", apierrors.FromObject(event.Object))
	}
	m, err := meta.Accessor(event.Object)
	if err != nil {
		return fmt.Errorf("watching definitions: %w", err)
	}
	revision, err := strconv.ParseUint(m.GetResourceVersion(), 10, 64)
	if err != nil {
		return fmt.Errorf("resource version %q of an event: %w", m.GetResourceVersion(), err)
	}
	if event.Type == watch.Added || event.Type == watch.Modified || event.Type == watch.Deleted {
		obj := hub.Unwrap(event.Object)
		crd, ok := obj.(*apiextensions.CustomResourceDefinition)
		if !ok {
			return fmt.Errorf("watching definitions gave a %T", obj)
		}
		if event.Type == watch.Deleted {
			o.replace(logicalcluster.From(crd), crd.Name, nil)
		} else {
			o.upsert(ctx, crd)
		}
	}
	o.advance(revision, false)
	return nil
}

// advance tells those who wait that the index has a revision.
func (o *Index) advance(revision uint64, synced bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.synced = o.synced || synced
	o.revision = max(o.revision, revision)
	close(o.advanced)
	o.advanced = make(chan struct{})
}

// upsert puts a definition into the index. One that cannot be served stays out.
func (o *Index) upsert(ctx context.Context, crd *apiextensions.CustomResourceDefinition) {
	cluster := logicalcluster.From(crd)
	if cluster == "" {
		return // written around the API
	}
	e, err := o.newEntry(cluster, crd)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A definition cannot be served", "logicalCluster", cluster, "definition", crd.Name)
		o.replace(cluster, crd.Name, nil)
		return
	}
	o.replace(cluster, crd.Name, e)
}

// replace puts, changes or, if e is nil, removes an entry, and tells who wants
// to know.
func (o *Index) replace(cluster logicalcluster.Name, name string, e *entry) {
	o.mu.Lock()
	before := o.clusters[cluster][name]
	switch {
	case e != nil && before != nil && before.revision >= e.revision:
		o.mu.Unlock()
		o.table.Release(e.schema, time.Now())
		return
	case e != nil:
		put(o.clusters, cluster, name, e)
		put(o.byName, name, cluster, e)
	default:
		remove(o.clusters, cluster, name)
		remove(o.byName, name, cluster)
	}
	o.mu.Unlock()

	if before == nil && e == nil {
		return
	}
	if before != nil && (e == nil || e.schema != before.schema || e.served != before.served) {
		o.changes.tell(Change{Cluster: cluster, Resource: before.schema.Resource, Gone: e == nil || !e.served})
	}
	o.entries.tell(entryChange{before, e})
	if before != nil {
		o.table.Release(before.schema, time.Now())
	}
}

func put[K1, K2 comparable, V any](m map[K1]map[K2]V, k1 K1, k2 K2, v V) {
	inner := m[k1]
	if inner == nil {
		inner = map[K2]V{}
		m[k1] = inner
	}
	inner[k2] = v
}

func remove[K1, K2 comparable, V any](m map[K1]map[K2]V, k1 K1, k2 K2) {
	delete(m[k1], k2)
	if len(m[k1]) == 0 {
		delete(m, k1)
	}
}

// metadataInput is the schema under which the metadata of a resource is read in
// a version, whatever the schemas of the objects.
func metadataInput(like *Schema, version string) hashInput {
	preserve := true
	spec := &specV1{
		Group: like.crd.Spec.Group,
		Names: *like.Names(),
		// Also reads all of what has no namespaces.
		Scope: apiextensionsv1.NamespaceScoped,
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve},
			},
		}},
		Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
	}
	names := *like.Names()
	return hashInput{Spec: spec, Names: &names, MetadataOnly: true}
}
