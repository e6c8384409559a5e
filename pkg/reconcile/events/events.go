// Package events records Events about objects for users.
package events

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
)

var resource = client.DefineResource[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "events", client.WithProtobuf())

// maxMessage is the limit of kube-apiserver for messages.
const maxMessage = 1024

// Event describes an Event.
type Event struct {
	// About is the object and Component the reporting controller.
	About     corev1.ObjectReference
	Component string
	// Type is a type of Kubernetes, e.g. Warning.
	Type, Reason, Message string
}

// Record creates an Event in the namespace of the object, or in "default". The arguments once identify the Event together
// with the object: if it already exists, Record returns nil.
func Record(ctx context.Context, scope client.Scope, e Event, once ...any) error {
	hash := fnv.New64a()
	fmt.Fprint(hash, append([]any{e.About.UID}, once...)...)
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(e.About.Namespace, metav1.NamespaceDefault),
			Name:      fmt.Sprintf("%s.%016x", strings.ReplaceAll(e.About.Name[:min(len(e.About.Name), 200)], ":", "."), hash.Sum64()),
		},
		InvolvedObject: e.About,
		Type:           e.Type, Reason: e.Reason, Message: strings.ToValidUTF8(e.Message[:min(len(e.Message), maxMessage)], ""), // not a part of a character
		Source: corev1.EventSource{Component: e.Component}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err := resource.InNamespace(scope, event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
