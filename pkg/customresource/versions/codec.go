package versions

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/packed"
)

// rawCodec stores custom resources as JSON, in the version in which they were written.
//
// Below the codec of a schema it also carries objects instead of bytes, so that this codec can run on an
// object of the shared cache without encoding it. Data that starts with a zero byte, which JSON never does, is
// the number of an object in transit, and a *capture is a writer that accepts an object.
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

// decodeObject decodes an object to version with a codec on top of a rawCodec. It may change and keep the
// object.
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

// encodeObject encodes a copy of an object with a codec on top of a rawCodec.
func encodeObject(codec runtime.Encoder, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	var taker capture
	if err := codec.Encode(u, &taker); err != nil {
		return nil, err
	}
	if taker.object == nil {
		return nil, errors.New("the codec of a custom resource encoded nothing")
	}
	return taker.object.DeepCopy(), nil
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

// conversionCheck converts objects before they are written if the schema has a conversion function. An object
// that cannot be converted would break every list in the other version, including lists by identity of other
// logical clusters. It does not call webhooks. A nil check accepts everything.
type conversionCheck struct {
	convert definitions.Convert
	stored  string
	served  []string
}

func newConversionCheck(sch *definitions.Schema, stored schema.GroupVersion) *conversionCheck {
	if sch.Convert == nil {
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
