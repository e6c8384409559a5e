package customresource

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
)

// A custom resource may be of a kind of Kubernetes, such as a Deployment. Clients have Go
// types for these, and send protobuf and strategic merge patches, as they would to a server
// that has the kind built in; upstream's handler of custom resources knows neither. By the
// same Go types they are made JSON and JSON merge patches here, before the handler sees
// them.

var (
	jsonOfTypes     = jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, jsonserializer.SerializerOptions{})
	protobufOfTypes = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
)

// serveFunc serves a request for what info says.
type serveFunc func(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo)

// body reads the body of a request.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	from := r.Body
	if s.maxBodyBytes > 0 {
		from = http.MaxBytesReader(w, from, s.maxBodyBytes)
	}
	body, err := io.ReadAll(from)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError("limit is " + strconv.FormatInt(tooLarge.Limit, 10))
	case err != nil:
		return nil, apierrors.NewBadRequest("reading the body: " + err.Error())
	}
	return body, nil
}

// jsonOf returns the object in a body of protobuf, as JSON.
func (s *Server) jsonOf(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := s.body(w, r)
	if err != nil {
		return nil, err
	}
	obj, _, err := protobufOfTypes.Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var out bytes.Buffer
	if err := jsonOfTypes.Encode(obj, &out); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return out.Bytes(), nil
}

// withBody returns a request with another body.
func withBody(r *http.Request, method, contentType string, body []byte) *http.Request {
	r = r.WithContext(r.Context())
	r.Method, r.Body, r.ContentLength = method, io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header = r.Header.Clone()
	r.Header.Set("Content-Type", contentType)
	r.Header.Del("Content-Length")
	return r
}

// toGet returns a request to get, as JSON, the object that a request is about.
func toGet(r *http.Request, info *genericapirequest.RequestInfo) (*http.Request, *genericapirequest.RequestInfo) {
	get := *info
	get.Verb = "get"
	where := *r.URL
	where.RawQuery = ""
	r = withBody(r.WithContext(genericapirequest.WithRequestInfo(r.Context(), &get)), http.MethodGet, "", nil)
	r.URL, r.Body = &where, http.NoBody
	r.Header = http.Header{"Accept": {runtime.ContentTypeJSON}, "User-Agent": r.Header.Values("User-Agent")}
	return r, &get
}

// wantsProtobuf reports whether a client takes nothing but whole objects as protobuf. One
// that takes JSON as well gets that: it has all fields, also those that a definition has
// and the Go type has not.
func wantsProtobuf(r *http.Request) bool {
	clauses := goautoneg.ParseAccept(r.Header.Get("Accept"))
	for _, clause := range clauses {
		if clause.Type+"/"+clause.SubType != runtime.ContentTypeProtobuf || clause.Params["as"] != "" {
			return false
		}
	}
	return len(clauses) > 0
}

// inProtobuf has next serve a request, and answers as protobuf.
func inProtobuf(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, next serveFunc) {
	asked := r.WithContext(r.Context())
	asked.Header = r.Header.Clone()
	asked.Header.Set("Accept", runtime.ContentTypeJSON)
	asked.Header.Del("Accept-Encoding")
	given := newResponse()
	next(given, asked, info)
	obj, _, err := jsonOfTypes.Decode(given.body.Bytes(), nil, nil)
	var out bytes.Buffer
	if err == nil {
		err = protobufOfTypes.Encode(obj, &out)
	}
	if err != nil { // the definition has fields of other types
		writeError(w, asked, info, negotiation.NewNotAcceptableError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML}))
		return
	}
	given.header.Set("Content-Type", runtime.ContentTypeProtobuf)
	given.header.Del("Content-Length")
	given.body = out
	given.writeTo(w)
}

// contentType returns the type of a body; none if it is malformed, which upstream judges.
func contentType(r *http.Request) string {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return mediaType
}

// response is the answer to a request within this process.
type response struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newResponse() *response { return &response{header: http.Header{}, status: http.StatusOK} }

// Header implements http.ResponseWriter.
func (a *response) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *response) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *response) Write(data []byte) (int, error) { return a.body.Write(data) }

// writeTo gives the answer to somebody else.
func (a *response) writeTo(w http.ResponseWriter) {
	for name, values := range a.header {
		for _, value := range values {
			w.Header().Add(name, value)
		}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // who has gone needs no answer
}
