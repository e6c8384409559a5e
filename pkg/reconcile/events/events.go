// Package events tells users about objects, by Events beside these.
package events

import (
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

// maxMessage is the longest message of an Event.
const maxMessage = 1024

// Event is what users are told about an object.
type Event struct {
	// About is the object, Component the controller that tells.
	About     corev1.ObjectReference
	Component string
	// Type is one of Kubernetes' types of Events.
	Type, Reason, Message string
}

// Tell creates an Event in the namespace of the object, or in default. There is one only for
// what once says, of the object: telling it again is no error.
func Record(ctx context.Context, scope client.Scope, e Event, once ...any) error {
	hash := fnv.New64a()
	fmt.Fprint(hash, append([]any{e.About.UID}, once...)...)
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.About.Namespace,
			Name:      fmt.Sprintf("%s.%016x", strings.ReplaceAll(e.About.Name[:min(len(e.About.Name), 200)], ":", "."), hash.Sum64()),
		},
		InvolvedObject: e.About,
		Type:           e.Type, Reason: e.Reason, Message: strings.ToValidUTF8(e.Message[:min(len(e.Message), maxMessage)], ""), // not a part of a character
		Source:         corev1.EventSource{Component: e.Component},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	if event.Namespace == "" {
		event.Namespace = metav1.NamespaceDefault
	}
	_, err := resource.InNamespace(scope, event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
