// A client of gRPC for Node.js with xDS: for each line that it is given, the
// method, it sends an RPC to the target and prints which backend has answered.
'use strict';

const grpc = require('@grpc/grpc-js');
const readline = require('readline');

require('@grpc/grpc-js-xds').register();

const deadlineMs = 10000;
const client = new grpc.Client(process.argv[2], grpc.credentials.createInsecure());

const lines = readline.createInterface({ input: process.stdin });
lines.on('close', () => process.exit());
lines.on('line', (method) => {
  client.makeUnaryRequest(method, (b) => b, (b) => b, Buffer.alloc(0), {
    deadline: Date.now() + deadlineMs,
  }, (error, reply) => {
    // The reply is a google.protobuf.StringValue: a tag, a length, the text.
    const answer = error ? { error: error.message } : { backend: reply.subarray(2).toString() };
    console.log(JSON.stringify(answer));
  });
});
