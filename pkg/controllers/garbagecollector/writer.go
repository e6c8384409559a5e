package garbagecollector

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	// component is the source of Events, as in Kubernetes.
	component = "garbage-collector-controller"
	// reasonInvalidOwner is the reason of the Event that tells of a wrong reference.
	reasonInvalidOwner = "OwnerRefInvalidNamespace"
	// tellAgain is how often one object has the same Event at most.
	tellAgain = time.Minute
)

// patch is what the collector changes in an object; nil leaves as it is.
type patch struct {
	references []metav1.OwnerReference
	finalizers []string
}

// body returns the merge patch, which holds for the version of the object only.
func (p patch) body(o object) ([]byte, error) {
	changed := map[string]any{"uid": o.uid, "resourceVersion": o.version}
	set := func(field string, there bool, value any, n int) {
		switch {
		case there && n == 0:
			changed[field] = nil
		case there:
			changed[field] = value
		}
	}
	set("ownerReferences", p.references != nil, p.references, len(p.references))
	set("finalizers", p.finalizers != nil, p.finalizers, len(p.finalizers))
	body, err := json.Marshal(map[string]any{"metadata": changed})
	if err != nil {
		return nil, fmt.Errorf("writing a patch: %w", err)
	}
	return body, nil
}

// writer writes through the API of the shard.
type writer struct {
	// deleting reaches it as the collector, whose deletions are judged by webhooks and
	// policies, and local as the system, whose writes are not.
	deleting, local *client.Factory
	lanes           lanes
}

func (*writer) of(f *client.Factory, kind storage.Kind, item Item) (metadata.ResourceInterface, error) {
	place := item.place()
	c, err := f.Cluster(place.Cluster.Path()).Metadata()
	if err != nil {
		return nil, err
	}
	if place.Namespace == "" {
		return c.Resource(kind.Resource), nil
	}
	return c.Resource(kind.Resource).Namespace(place.Namespace), nil
}

// remove deletes an object as it is.
func (w *writer) remove(ctx context.Context, kind storage.Kind, item Item, o object, policy metav1.DeletionPropagation) error {
	done, err := w.lanes.enter(item.LogicalCluster())
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	in, err := w.of(w.deleting, kind, item)
	if err != nil {
		return err
	}
	err = in.Delete(ctx, item.place().Name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &o.uid, ResourceVersion: &o.version},
		PropagationPolicy: &policy,
	})
	return err
}

// patch changes an object as it is.
func (w *writer) patch(ctx context.Context, kind storage.Kind, item Item, o object, p patch) error {
	body, err := p.body(o)
	if err != nil {
		return err
	}
	in, err := w.of(w.local, kind, item)
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, item.place().Name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

// report tells users in an Event.
func (w *writer) report(ctx context.Context, kind storage.Kind, item Item, o object, r metav1.OwnerReference) {
	place := item.place()
	err := events.Record(ctx, w.local.Cluster(place.Cluster.Path()), events.Event{
		About: corev1.ObjectReference{
			APIVersion: kind.Resource.GroupVersion().String(), Kind: kind.Kind,
			Namespace: place.Namespace, Name: place.Name, UID: o.uid,
		},
		Component: component, Type: corev1.EventTypeWarning, Reason: reasonInvalidOwner,
		Message: fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
			r.APIVersion, r.Kind, place.Namespace, r.Name, r.UID, place.Namespace),
	}, r.UID, r.APIVersion, r.Kind, r.Name, time.Now().Truncate(tellAgain).Unix())
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot tell of a wrong owner reference in an Event", "object", item, "err", err)
	}
}
