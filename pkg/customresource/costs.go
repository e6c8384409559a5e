package customresource

import (
	"context"
	"maps"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/schemacosts"
)

// The cost of an object under its schema is limited twice. The body of a request is checked before it is decoded,
// because decoding sets defaults and tracks managed fields. The object is checked again in admission, i.e. after a
// patch was applied and before validation. Upstream ignores the request's deadline in these steps.

// costed checks the body of a write against the limits of the schema. Admission checks the object again with
// the context of the returned request.
func costed(r *http.Request, info *genericapirequest.RequestInfo, sch *definitions.Schema) (*http.Request, error) {
	costs := sch.Costs(info.APIVersion)
	if costs == nil || info.Verb != "create" && info.Verb != "update" && info.Verb != "patch" || info.Subresource != "" && info.Subresource != "status" {
		return r, nil
	}
	v := sch.Version(info.APIVersion)
	hasStatus := v != nil && v.Subresources != nil && v.Subresources.Status != nil
	r = r.WithContext(context.WithValue(r.Context(), costsKey{}, &written{schema: sch, costs: costs, hasStatus: hasStatus}))
	mediaType := contentType(r)
	if mediaType != string(types.JSONPatchType) && r.ContentLength >= 0 && r.ContentLength < schemacosts.MinBytes {
		return r, nil
	}
	r, body, err := buffered(r)
	if err != nil {
		return r, err
	}
	if len(body) < schemacosts.MinBytes && !schemacosts.MayCopy(body) {
		return r, nil
	}
	schema := costs.Schema()
	if schema == nil {
		return r, nil
	}
	if err := schema.Body(body, mediaType); err != nil {
		return r, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	return r, nil
}

type costsKey struct{}

type written struct {
	schema    *definitions.Schema
	costs     *schemacosts.Lazy
	hasStatus bool
}

// limited limits the defaults that admission plugins add to objects after webhooks and policies have changed them.
type limited struct {
	admission.ObjectInterfaces

	written *written
	err     error
}

func (l *limited) GetObjectDefaulter() runtime.ObjectDefaulter { return l }

func (l *limited) Default(in runtime.Object) {
	if object, ok := in.(*unstructured.Unstructured); ok {
		costs := l.written.schema.Costs(object.GroupVersionKind().Version)
		if l.err == nil && costs != nil && costs.IsLarge(object.Object) {
			l.err = costs.Schema().Stored(object.Object)
		}
	}
	if l.err == nil {
		l.ObjectInterfaces.GetObjectDefaulter().Default(in)
	}
}

func admitted(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces, admit func(context.Context, admission.Attributes, admission.ObjectInterfaces) error) error {
	known, ok := ctx.Value(costsKey{}).(*written)
	if !ok {
		return admit(ctx, a, o)
	}
	l := &limited{ObjectInterfaces: o, written: known}
	if err := admit(ctx, a, l); err != nil {
		return err
	}
	if l.err != nil {
		return apierrors.NewRequestEntityTooLargeError(l.err.Error())
	}
	return nil
}

// checkCosts rejects objects that are too expensive to validate.
func checkCosts(ctx context.Context, a admission.Attributes) error {
	known, ok := ctx.Value(costsKey{}).(*written)
	object, isObject := a.GetObject().(*unstructured.Unstructured)
	if !ok || !isObject {
		return nil
	}
	isLarge := known.costs.IsLarge(object.Object)
	if !isLarge && !known.costs.IsLong(object.Object) {
		return nil
	}
	schema := known.costs.Schema()
	var before map[string]any
	if old, ok := a.GetOldObject().(*unstructured.Unstructured); ok && old != nil {
		before = old.Object
	}
	if err := schema.Object(object.Object, before); err != nil {
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	if !isLarge {
		return nil
	}
	only, except := a.GetSubresource(), ""
	if only == "" && known.hasStatus {
		except = "status" // not written
	}
	errs, many, err := schema.Errors(object.Object, before, only, except)
	if err == nil && !many {
		errs, err = allErrors(ctx, a, known, object.Object, before, len(errs) > 0)
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if len(errs) <= request.MaxErrors-otherErrors {
		return nil
	}
	return request.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
}

// otherErrors is more than the number of errors that allErrors does not find: those about scale and immutable metadata.
const otherErrors = 10

// allErrors returns the errors of all kinds together, because upstream would report all of them, in quadratic time.
// hasShape reports whether the object may have errors in its shape.
func allErrors(ctx context.Context, a admission.Attributes, known *written, object, old map[string]any, hasShape bool) (field.ErrorList, error) {
	rules, err := known.schema.Rules(a.GetKind().Version)
	if err != nil {
		return nil, err
	}
	validated := object
	status := a.GetSubresource() == "status"
	if status || known.hasStatus {
		// Either only the status is written, or everything else.
		kept, changed := object, old
		if status {
			kept, changed = old, object
		}
		validated = maps.Clone(kept)
		delete(validated, "status")
		if value, ok := changed["status"]; ok {
			validated["status"] = value
		}
	}
	errs := objectmeta.Validate(ctx, nil, validated, nil, true) // metadata
	if hasShape {
		errs = append(errs, rules.ShapeErrors(validated, old, status)...)
	}
	return append(errs, rules.Errors(ctx, validated, old, errs, status)...), nil
}
