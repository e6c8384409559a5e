package events

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/validate"
)

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
