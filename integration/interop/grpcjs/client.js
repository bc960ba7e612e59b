// A client of gRPC for Node.js with xDS. For each line of its input, a method, it sends an RPC to the
// target and prints which backend has answered. The line may also have another target, the value of the
// header "key" and a deadline in milliseconds. For the line "close TARGET", the client closes the channel
// to a target. For the line "csds", it prints the address of its Client Status Discovery Service.
'use strict';

const grpc = require('@grpc/grpc-js');
const readline = require('readline');

require('@grpc/grpc-js-xds').register();

const defaultDeadlineMs = 10000;
const say = (answer) => console.log(JSON.stringify(answer));

const clients = new Map(); // by target
const clientOf = (target) => {
  if (!clients.has(target)) {
    clients.set(target, new grpc.Client(target, grpc.credentials.createInsecure()));
  }
  return clients.get(target);
};

const call = (method, target = process.argv[2], key, deadlineMs = defaultDeadlineMs) => {
  const headers = new grpc.Metadata();
  if (key) {
    headers.set('key', key);
  }
  clientOf(target).makeUnaryRequest(method, (b) => b, (b) => b, Buffer.alloc(0), headers, {
    deadline: Date.now() + Number(deadlineMs),
  }, (error, reply) => {
    // The reply is a google.protobuf.StringValue: a tag, a length, the text.
    say(error ? { error: error.message, code: error.code } : { backend: reply.subarray(2).toString() });
  });
};

const close = (target) => {
  clientOf(target).close();
  clients.delete(target);
  say({});
};

let csds;
const serveStatus = () => {
  csds = new grpc.Server();
  grpc.addAdminServicesToServer(csds);
  csds.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (error, port) => {
    say(error ? { error: error.message } : { csds: `127.0.0.1:${port}` });
  });
};

const lines = readline.createInterface({ input: process.stdin });
lines.on('close', () => process.exit());
lines.on('line', (line) => {
  const words = line.split(' ');
  switch (words[0]) {
    case 'csds': return serveStatus();
    case 'close': return close(words[1]);
    default: return call(...words);
  }
});
