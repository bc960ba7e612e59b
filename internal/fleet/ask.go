package fleet

import (
	"context"
	"encoding/json"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Members ask each other what operators ask one of them: a question is a request of HTTP to the admin listener, and an
// answer what the listener says. They go as JSON in a message, because nothing but members of the same program reads them.

// AskMethod is the method with which a member asks another one.
const AskMethod = "/xds_relay.fleet.Member/Ask"

// Question is a request to the admin listener of a member.
type Question struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	// Values are the query of a GET, and the form of a POST.
	Values map[string][]string `json:"values,omitempty"`
	// Operator is who asks.
	Operator string `json:"operator,omitempty"`
}

// Answer is what a member's admin listener says.
type Answer struct {
	Status int    `json:"status"` // of HTTP
	Body   []byte `json:"body"`
}

// MaxAnswer bounds the body of an answer, in bytes.
const MaxAnswer = 4 << 20

// Ask asks a member.
func Ask(ctx context.Context, conn grpc.ClientConnInterface, q Question) (a Answer, err error) {
	encoded, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	const overhead = 2 * MaxAnswer // base64, and what is around
	var out wrapperspb.BytesValue
	if err := conn.Invoke(ctx, AskMethod, wrapperspb.Bytes(encoded), &out, grpc.MaxCallRecvMsgSize(overhead)); err != nil {
		return a, err
	}
	return a, json.Unmarshal(out.GetValue(), &a)
}

// RegisterAnswers has a server answer the questions of members.
func RegisterAnswers(s grpc.ServiceRegistrar, answer func(context.Context, Question) (Answer, error)) {
	respond := func(ctx context.Context, request any) (any, error) {
		var q Question
		in, ok := request.(*wrapperspb.BytesValue)
		if !ok || json.Unmarshal(in.GetValue(), &q) != nil {
			return nil, status.Error(codes.InvalidArgument, "this is no question of a member")
		}
		a, err := answer(ctx, q)
		if err != nil {
			return nil, err
		}
		encoded, err := json.Marshal(a)
		return wrapperspb.Bytes(encoded), err
	}
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "xds_relay.fleet.Member", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Ask",
		Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.BytesValue)
			if err := decode(in); err != nil {
				return nil, err
			}
			if intercept == nil {
				return respond(ctx, in)
			}
			return intercept(ctx, in, &grpc.UnaryServerInfo{FullMethod: AskMethod}, respond)
		},
	}}}, nil)
}
