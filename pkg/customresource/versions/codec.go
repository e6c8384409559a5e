package versions

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
)

// rawCodec stores custom resources as JSON, in the version in which they were written.
//
// The codec of a schema uses it to decode and encode objects of the shared cache without bytes in between. If
// data starts with a zero byte, which JSON never does, it contains the number of an object in transit. A
// *capture is a writer that accepts an object.
type rawCodec struct {
	runtime.Codec
}

func newRawCodec() rawCodec { return rawCodec{unstructured.UnstructuredJSONScheme} }

const transitLen = 1 + 8

var transit struct {
	last    atomic.Uint64
	objects sync.Map // uint64 to *unstructured.Unstructured
}

func (c rawCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if len(data) != transitLen || data[0] != 0 {
		return c.Codec.Decode(data, defaults, into)
	}
	v, ok := transit.objects.LoadAndDelete(binary.BigEndian.Uint64(data[1:]))
	if !ok {
		return nil, nil, errors.New("the object to decode was not found")
	}
	u, _ := v.(*unstructured.Unstructured)
	gvk := u.GroupVersionKind()
	if target, ok := into.(*unstructured.Unstructured); ok && target != nil {
		target.Object = u.Object
		u = target
	}
	return u, &gvk, nil
}

func (c rawCodec) Encode(obj runtime.Object, w io.Writer) error {
	taker, ok := w.(*capture)
	if !ok {
		return c.Codec.Encode(obj, w)
	}
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("cannot store a %T as a custom resource", obj)
	}
	taker.object = u
	return nil
}

type capture struct {
	object *unstructured.Unstructured
}

// Write implements io.Writer; nothing writes bytes to it.
func (*capture) Write([]byte) (int, error) {
	return 0, errors.New("expected an object, got bytes")
}

// decodeObject decodes an object to version with a codec on top of a rawCodec. It may change and keep the object.
func decodeObject(codec runtime.Decoder, u *unstructured.Unstructured, version schema.GroupVersion) (*unstructured.Unstructured, error) {
	var into runtime.Object
	if u.GroupVersionKind().GroupVersion() == version {
		// Avoids converting to the same version, which would double the cost.
		into = &unstructured.Unstructured{}
	}
	id := transit.last.Add(1)
	transit.objects.Store(id, u)
	defer transit.objects.Delete(id)
	var data [transitLen]byte
	binary.BigEndian.PutUint64(data[1:], id)
	obj, _, err := codec.Decode(data[:], nil, into)
	if err != nil {
		return nil, err
	}
	out, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("the codec of a custom resource returned a %T", obj)
	}
	return out, nil
}

// packedCodec is the codec of the shared stores. It writes as rawCodec does, and decodes to packed objects.
type packedCodec struct {
	rawCodec

	packer *packed.Packer
}

func (c packedCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	var u unstructured.Unstructured
	_, gvk, err := c.rawCodec.Decode(data, defaults, &u)
	if err != nil {
		return nil, gvk, err
	}
	object := c.packer.Pack(&u)
	if target, ok := into.(*packed.Object); ok {
		*target = *object
		object = target
	}
	return object, gvk, nil
}

func (c packedCodec) Encode(obj runtime.Object, w io.Writer) error {
	if stored, ok := obj.(*packed.Object); ok {
		obj = stored.Unstructured()
	}
	return c.rawCodec.Encode(obj, w)
}

// conversionCheck converts objects before they are written if the schema has a conversion function. Otherwise, an
// object that cannot be converted would break lists in other versions, even those of other logical clusters. A nil
// check accepts everything.
type conversionCheck struct {
	convert definitions.Convert
	stored  string
	served  []string
}

func newConversionCheck(sch *definitions.Schema, stored schema.GroupVersion) *conversionCheck {
	if !sch.ConvertMayFail {
		return nil
	}
	t := &conversionCheck{convert: sch.Convert, stored: stored.String()}
	for _, v := range sch.Spec().Versions {
		if gv := (schema.GroupVersion{Group: stored.Group, Version: v.Name}).String(); v.Served && gv != t.stored {
			t.served = append(t.served, gv)
		}
	}
	return t
}

// checkStored converts an object of a client to the stored version.
func (t *conversionCheck) checkStored(u *unstructured.Unstructured, gvk schema.GroupVersionKind) error {
	if t == nil || gvk.GroupVersion().String() == t.stored {
		return nil
	}
	return t.checkVersion(u, t.stored)
}

// checkServed converts an object to all served versions.
func (t *conversionCheck) checkServed(stored *unstructured.Unstructured) error {
	if t == nil {
		return nil
	}
	for _, version := range t.served {
		if err := t.checkVersion(stored, version); err != nil {
			return err
		}
	}
	return nil
}

// checkUpdate is checkServed for an update. An object that was invalid before may stay so, because finalizers
// must be removable.
func (t *conversionCheck) checkUpdate(before *packed.Object, after *unstructured.Unstructured) error {
	if err := t.checkServed(after); err != nil && t.checkServed(before.Unstructured()) == nil {
		return err
	}
	return nil
}

func (t *conversionCheck) checkVersion(u *unstructured.Unstructured, version string) error {
	if _, err := t.convert(u, version); err != nil {
		gvk := u.GroupVersionKind()
		return apierrors.NewInvalid(gvk.GroupKind(), u.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("apiVersion"), u.GetAPIVersion(), fmt.Sprintf("the object cannot be converted to %s: %v", version, err)),
		})
	}
	return nil
}

var errHookStopped = errors.New("the server is shutting down")

// Hooks cancels the calls of conversion webhooks on shutdown, because upstream gives each call 30 seconds,
// independent of the request. It also serves webhooks that are functions of this process.
type Hooks struct {
	schemas func(path string) definitions.Convert

	running context.Context //nolint:containedctx // ends with Stop
	// Stop cancels all current and future calls.
	Stop context.CancelFunc
}

// NewHooks returns Hooks without calls. schemas returns the function for the path of a URL with the host
// definitions.ConvertHost.
func NewHooks(schemas func(path string) definitions.Convert) *Hooks {
	running, stop := context.WithCancel(context.Background()) //nolint:forbidigo // ends with Stop
	return &Hooks{schemas: schemas, running: running, Stop: stop}
}

// Resolver wraps a resolver so that Stop cancels the calls of its clients.
func (h *Hooks) Resolver(wrapped webhook.AuthenticationInfoResolverWrapper) webhook.AuthenticationInfoResolverWrapper {
	counted := func(cfg *rest.Config, err error) (*rest.Config, error) {
		if err != nil {
			return nil, err
		}
		cfg = rest.CopyConfig(cfg)
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &hookTransport{hooks: h, next: next} })
		return cfg, nil
	}
	return func(delegate webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		inner := wrapped(delegate)
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
				if host, _, _ := strings.Cut(hostPort, ":"); host == definitions.ConvertHost {
					return h.inProcess(), nil
				}
				return counted(inner.ClientConfigFor(hostPort))
			},
			ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
				return counted(inner.ClientConfigForService(name, namespace, port))
			},
		}
	}
}

// hookTransport sends the calls of a webhook. next must read a response completely before it returns it.
type hookTransport struct {
	hooks *Hooks
	next  http.RoundTripper
}

func (t *hookTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(t.hooks.running, func() { cancel(errHookStopped) })() //nolint:contextcheck // ctx also ends with Stop
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil && errors.Is(context.Cause(ctx), errHookStopped) {
		return nil, errHookStopped
	}
	return response, err
}

// inProcess returns the client configuration of a conversion webhook that is a function of this process.
// Upstream converts kinds that differ in more than their versions only with webhooks.
func (h *Hooks) inProcess() *rest.Config {
	cfg := &rest.Config{QPS: -1}
	cfg.Wrap(func(http.RoundTripper) http.RoundTripper { return converter(h.schemas) })
	return cfg
}

// converter calls webhooks in this process. It returns the function for the path of a URL, or nil.
type converter func(path string) definitions.Convert

func (c converter) RoundTrip(r *http.Request) (*http.Response, error) {
	defer func() { _ = r.Body.Close() }()
	convert := c(r.URL.Path)
	if convert == nil {
		return nil, errors.New("the schema is no longer served, try again")
	}
	review := &apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(r.Body).Decode(review); err != nil || review.Request == nil {
		return nil, fmt.Errorf("reading the ConversionReview: %w", err)
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for i := range review.Request.Objects {
		out, err := convertRaw(convert, review.Request.Objects[i].Raw, review.Request.DesiredAPIVersion)
		if err != nil {
			review.Response.ConvertedObjects = nil
			review.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			break
		}
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Raw: out})
	}
	review.Request = nil
	body, err := json.Marshal(review)
	if err != nil {
		return nil, fmt.Errorf("writing the ConversionReview: %w", err)
	}
	return &http.Response{
		Status: http.StatusText(http.StatusOK), StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}}, ContentLength: int64(len(body)),
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

func convertRaw(convert definitions.Convert, in []byte, to string) ([]byte, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(in); err != nil {
		return nil, err
	}
	out, err := convert(u, to)
	if err != nil {
		return nil, err
	}
	return out.MarshalJSON()
}
