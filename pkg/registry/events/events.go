// Package events describes events, which two API groups serve in different forms: core/v1, and events.k8s.io/v1 with other
// field names and stricter rules. They are stored as core/v1, for an hour.
package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

const timeToLive = time.Hour

// Group returns events.k8s.io/v1, which serves the events of the core group. It must be built after the group with Core.
func Group() resource.Group {
	return resource.Group{
		GroupVersion: eventsv1.SchemeGroupVersion,
		Resources: []resource.Definition{&resource.Alternate[*corev1.Event, *corev1.EventList]{
			Of:          events,
			New:         func() runtime.Object { return &eventsv1.Event{} },
			NewList:     func() runtime.Object { return &eventsv1.EventList{} },
			FieldLabels: eventsV1FieldLabels,
		}},
		AddToScheme: addConversions,
	}
}

// Core returns the resource as the core group serves it.
func Core() resource.Definition { return events }

var events = &resource.Resource[*corev1.Event, *corev1.EventList]{
	ShortNames: []string{"ev"},
	Namespaced: true,
	TTL:        timeToLive,
	Strategy: resource.Strategy[*corev1.Event]{
		Validate: func(ctx context.Context, event *corev1.Event) field.ErrorList {
			return validateCreate(event, requestVersion(ctx))
		},
		ValidateUpdate: func(ctx context.Context, event, old *corev1.Event) field.ErrorList {
			return validateUpdate(event, old, requestVersion(ctx))
		},
		CreateOnUpdate:      true,
		UnconditionalUpdate: true,
		GarbageCollection:   rest.Unsupported,
	},
	Selectable: selectable,
	Columns:    columns,
}

// eventsV1FieldLabels maps the field labels of events.k8s.io/v1 to those of core/v1.
var eventsV1FieldLabels = map[string]string{
	"metadata.name":             "metadata.name",
	"metadata.namespace":        "metadata.namespace",
	"reason":                    "reason",
	"regarding.kind":            "involvedObject.kind",
	"regarding.namespace":       "involvedObject.namespace",
	"regarding.name":            "involvedObject.name",
	"regarding.uid":             "involvedObject.uid",
	"regarding.apiVersion":      "involvedObject.apiVersion",
	"regarding.resourceVersion": "involvedObject.resourceVersion",
	"regarding.fieldPath":       "involvedObject.fieldPath",
	"reportingController":       "reportingComponent",
	"type":                      "type",
}

func selectable(event *corev1.Event) fields.Set {
	return fields.Set{
		"involvedObject.kind":            event.InvolvedObject.Kind,
		"involvedObject.namespace":       event.InvolvedObject.Namespace,
		"involvedObject.name":            event.InvolvedObject.Name,
		"involvedObject.uid":             string(event.InvolvedObject.UID),
		"involvedObject.apiVersion":      event.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": event.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       event.InvolvedObject.FieldPath,
		"reason":                         event.Reason,
		"reportingComponent":             event.ReportingController,
		"source":                         cmp.Or(event.Source.Component, event.ReportingController),
		"type":                           event.Type,
	}
}

// requestVersion returns the API version of the request. For the zero value, the strict rules apply.
func requestVersion(ctx context.Context) schema.GroupVersion {
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		return schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	return schema.GroupVersion{}
}

var eventDoc = corev1.Event{}.SwaggerDoc()

var columns = []resource.Column[*corev1.Event]{
	{Name: "Last Seen", Description: eventDoc["lastTimestamp"], Cell: func(e *corev1.Event) any { return lastSeen(e) }},
	{Name: "Type", Description: eventDoc["type"], Cell: func(e *corev1.Event) any { return e.Type }},
	{Name: "Reason", Description: eventDoc["reason"], Cell: func(e *corev1.Event) any { return e.Reason }},
	{Name: "Object", Description: eventDoc["involvedObject"], Cell: func(e *corev1.Event) any { return target(e) }},
	{
		Name: "Subobject", Priority: 1, Description: corev1.ObjectReference{}.SwaggerDoc()["fieldPath"],
		Cell: func(e *corev1.Event) any { return e.InvolvedObject.FieldPath },
	},
	{Name: "Source", Priority: 1, Description: eventDoc["source"], Cell: func(e *corev1.Event) any { return source(e) }},
	{Name: "Message", Description: eventDoc["message"], Cell: func(e *corev1.Event) any { return strings.TrimSpace(e.Message) }},
	{Name: "First Seen", Priority: 1, Description: eventDoc["firstTimestamp"], Cell: func(e *corev1.Event) any { return firstSeen(e) }},
	{Name: "Count", Priority: 1, Description: eventDoc["count"], Cell: func(e *corev1.Event) any { return count(e) }},
	wide(resource.NameColumn[*corev1.Event]()),
}

func wide(c resource.Column[*corev1.Event]) resource.Column[*corev1.Event] {
	c.Priority = 1
	return c
}

func firstSeen(e *corev1.Event) string {
	if e.FirstTimestamp.IsZero() {
		return resource.Since(e.EventTime.Time)
	}
	return resource.Since(e.FirstTimestamp.Time)
}

func lastSeen(e *corev1.Event) string {
	switch {
	case e.Series != nil:
		return resource.Since(e.Series.LastObservedTime.Time)
	case e.LastTimestamp.IsZero():
		return firstSeen(e)
	default:
		return resource.Since(e.LastTimestamp.Time)
	}
}

// count returns the number of occurrences. Events of the new API that are not part of a series have no count.
func count(e *corev1.Event) int64 {
	switch {
	case e.Series != nil:
		return int64(e.Series.Count)
	case e.Count == 0:
		return 1
	default:
		return int64(e.Count)
	}
}

func target(e *corev1.Event) string {
	kind := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name == "" {
		return kind
	}
	return kind + "/" + e.InvolvedObject.Name
}

func source(e *corev1.Event) string {
	component := cmp.Or(e.Source.Component, e.ReportingController)
	instance := cmp.Or(e.Source.Host, e.ReportingInstance)
	if instance == "" {
		return component
	}
	return component + ", " + instance
}

// addConversions registers the conversions between both forms. As usual, the result shares memory with its source.
func addConversions(scheme *runtime.Scheme) error {
	return errors.Join(
		addConversion(scheme, toEventsV1),
		addConversion(scheme, toCore),
		addConversion(scheme, func(from *corev1.EventList, to *eventsv1.EventList) {
			to.ListMeta, to.Items = from.ListMeta, convertItems(from.Items, toEventsV1)
		}),
		addConversion(scheme, func(from *eventsv1.EventList, to *corev1.EventList) {
			to.ListMeta, to.Items = from.ListMeta, convertItems(from.Items, toCore)
		}),
	)
}

func addConversion[From, To any](scheme *runtime.Scheme, convert func(*From, *To)) error {
	return scheme.AddConversionFunc((*From)(nil), (*To)(nil), func(from, to any, _ conversion.Scope) error {
		convert(from.(*From), to.(*To))
		return nil
	})
}

// convertItems preserves nil, which is encoded as null.
func convertItems[From, To any](in []From, convert func(*From, *To)) []To {
	if in == nil {
		return nil
	}
	out := make([]To, len(in))
	for i := range in {
		convert(&in[i], &out[i])
	}
	return out
}

func toEventsV1(in *corev1.Event, out *eventsv1.Event) {
	*out = eventsv1.Event{
		ObjectMeta:               in.ObjectMeta,
		EventTime:                in.EventTime,
		ReportingController:      in.ReportingController,
		ReportingInstance:        in.ReportingInstance,
		Action:                   in.Action,
		Reason:                   in.Reason,
		Regarding:                in.InvolvedObject,
		Related:                  in.Related,
		Note:                     in.Message,
		Type:                     in.Type,
		DeprecatedSource:         in.Source,
		DeprecatedFirstTimestamp: in.FirstTimestamp,
		DeprecatedLastTimestamp:  in.LastTimestamp,
		DeprecatedCount:          in.Count,
	}
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}

func toCore(in *eventsv1.Event, out *corev1.Event) {
	*out = corev1.Event{
		ObjectMeta:          in.ObjectMeta,
		EventTime:           in.EventTime,
		ReportingController: in.ReportingController,
		ReportingInstance:   in.ReportingInstance,
		Action:              in.Action,
		Reason:              in.Reason,
		InvolvedObject:      in.Regarding,
		Related:             in.Related,
		Message:             in.Note,
		Type:                in.Type,
		Source:              in.DeprecatedSource,
		FirstTimestamp:      in.DeprecatedFirstTimestamp,
		LastTimestamp:       in.DeprecatedLastTimestamp,
		Count:               in.DeprecatedCount,
	}
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
}

// These limits, in bytes, apply to events with an event time.
const (
	maxShort = 128
	maxNote  = 1024
)

// validateCreate validates a new event with the legacy rules and, except in core/v1, with the strict ones.
func validateCreate(event *corev1.Event, version schema.GroupVersion) field.ErrorList {
	errs := validateLegacy(event)
	if version == corev1.SchemeGroupVersion {
		return errs
	}
	errs = append(errs, validate.ObjectMeta(event, true, apivalidation.NameIsDNSSubdomain)...)
	errs = append(errs, validateSeries(event)...)
	if event.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if event.Type != corev1.EventTypeNormal && event.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", event.Type)))
	}
	for _, deprecated := range []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !event.FirstTimestamp.IsZero()},
		{"lastTimestamp", !event.LastTimestamp.IsZero()},
		{"count", event.Count != 0},
		{"source", event.Source.Component != "" || event.Source.Host != ""},
	} {
		if deprecated.set {
			errs = append(errs, field.Invalid(field.NewPath(deprecated.name), "", "needs to be unset"))
		}
	}
	return errs
}

// validateUpdate validates an updated event. Through events.k8s.io/v1, only its series and metadata may change.
func validateUpdate(event, old *corev1.Event, version schema.GroupVersion) field.ErrorList {
	errs := validateLegacy(event)
	if version == corev1.SchemeGroupVersion {
		return errs
	}
	errs = append(errs, validate.ObjectMetaUpdate(event, old)...)
	if !reflect.DeepEqual(event.Series, old.Series) {
		errs = append(errs, validateSeries(event)...)
	}
	for _, immutable := range []struct {
		name     string
		now, old any
	}{
		{"involvedObject", event.InvolvedObject, old.InvolvedObject},
		{"reason", event.Reason, old.Reason},
		{"message", event.Message, old.Message},
		{"source", event.Source, old.Source},
		{"firstTimestamp", event.FirstTimestamp, old.FirstTimestamp},
		{"lastTimestamp", event.LastTimestamp, old.LastTimestamp},
		{"count", event.Count, old.Count},
		{"type", event.Type, old.Type},
		{"eventTime", event.EventTime, old.EventTime},
		{"action", event.Action, old.Action},
		{"related", event.Related, old.Related},
		{"reportingController", event.ReportingController, old.ReportingController},
		{"reportingInstance", event.ReportingInstance, old.ReportingInstance},
	} {
		errs = append(errs, apivalidation.ValidateImmutableField(immutable.now, immutable.old, field.NewPath(immutable.name))...)
	}
	return errs
}

func validateSeries(event *corev1.Event) field.ErrorList {
	if event.Series == nil {
		return nil
	}
	var errs field.ErrorList
	if event.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if event.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// validateLegacy validates the common rules. An event with an event time must have the fields of the new API.
func validateLegacy(event *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	if !namespacesAgree(event) {
		errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), event.InvolvedObject.Namespace, "does not match event.namespace"))
	}
	if !event.EventTime.IsZero() {
		errs = append(errs, validateNewFields(event)...)
	}
	errs = append(errs, validate.Messages(field.NewPath("namespace"), event.Namespace, validation.IsDNS1123Subdomain(event.Namespace))...)
	return errs
}

// namespacesAgree reports whether the event is in the namespace of its object. Events about cluster-scoped objects are in
// the namespace default. New ones may also be in kube-system, and those about other objects in any namespace.
func namespacesAgree(event *corev1.Event) bool {
	namespace, involved := event.Namespace, event.InvolvedObject.Namespace
	switch {
	case event.EventTime.IsZero() && involved == "":
		return namespace == metav1.NamespaceNone || namespace == metav1.NamespaceDefault
	case event.EventTime.IsZero():
		return namespace == involved
	case involved == "":
		return namespace == metav1.NamespaceDefault || namespace == metav1.NamespaceSystem
	default:
		return true
	}
}

func validateNewFields(event *corev1.Event) field.ErrorList {
	controller := field.NewPath("reportingController")
	var errs field.ErrorList
	if event.ReportingController == "" {
		errs = append(errs, field.Required(controller, ""))
	}
	errs = append(errs, validate.Messages(controller, event.ReportingController, validation.IsQualifiedName(event.ReportingController))...)
	for _, required := range []struct{ name, value string }{
		{"reportingInstance", event.ReportingInstance},
		{"action", event.Action},
		{"reason", event.Reason},
	} {
		path := field.NewPath(required.name)
		if required.value == "" {
			errs = append(errs, field.Required(path, ""))
		}
		errs = append(errs, atMost(path, required.value, maxShort)...)
	}
	return append(errs, atMost(field.NewPath("message"), event.Message, maxNote)...)
}

func atMost(path *field.Path, value string, limit int) field.ErrorList {
	if len(value) <= limit {
		return nil
	}
	return field.ErrorList{field.Invalid(path, "", fmt.Sprintf("can have at most %v characters", limit))}
}
